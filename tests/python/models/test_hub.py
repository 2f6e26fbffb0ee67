"""Models by hub id, from a server on this machine that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
from toy_models import llama

from astrai.models import ModelLoadError, load_model
from astrai.models.hub import fetch_from_hub, is_hub_id

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
SECRET = "hf_of_the_test"


class Hub(ThreadingHTTPServer):
    """One model, Owner/toy, which takes a token; Owner/gone does not exist."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
        self.fetched: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET(has_body=False)

    def do_GET(self, has_body: bool = True) -> None:
        path = self.path.split("?")[0]
        commit = next((c for n, c in COMMITS.items() if path.endswith(f"/revision/{n}")), None)
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            self.reply(401, b"", {"X-Error-Code": "GatedRepo"}, has_body)
        elif path.startswith("/api/models/Owner/toy") and (commit or path.endswith("toy")):
            names = [{"rfilename": name} for name in self.server.files]
            info = {"id": "Owner/toy", "sha": commit or COMMITS["main"], "siblings": names}
            self.reply(200, json.dumps(info).encode(), {}, has_body)
        elif path.startswith("/api/models/Owner/toy/tree/"):
            files = self.server.files.items()
            tree = [{"type": "file", "path": n, "size": len(c), "oid": "0"} for n, c in files]
            self.reply(200, json.dumps(tree).encode(), {}, has_body)
        elif path.startswith("/Owner/toy/resolve/"):
            commit, name = path.split("/")[4:6]
            content = self.server.files[name]
            if has_body:
                self.server.fetched.append(f"{commit[0]}/{name}")
            etag = hashlib.sha256(content).hexdigest()
            self.reply(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit}, has_body)
        else:
            self.reply(404, b"", {"X-Error-Code": "RepoNotFound"}, has_body)

    def reply(self, status: int, body: bytes, headers: dict[str, str], has_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "published"
    llama().save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for name in ("pytorch_model.bin", "consolidated.safetensors", "modeling_toy.py", "README.md"):
        (folder / name).write_bytes(b"never fetched")
    server = Hub(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.endpoint)
    files_at = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", files_at)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()


def test_what_the_loader_reads_is_fetched_once_and_nothing_else(hub: Hub) -> None:
    loaded = load_model("Owner/toy", device="cpu", dtype="float32", progress=False)
    assert loaded.config.vocab_size == 96
    names = {"config.json", "generation_config.json", "model.safetensors", "chat_template.jinja"}
    assert sorted(hub.fetched) == sorted(f"a/{name}" for name in names)
    fetch_from_hub("Owner/toy")
    assert len(hub.fetched) == len(names)


def test_a_revision_stands_behind_an_at_sign(hub: Hub) -> None:
    assert fetch_from_hub("Owner/toy@v1", progress=False).name == COMMITS["v1"]
    assert {name[0] for name in hub.fetched} == {"b"}
    with pytest.raises(ModelLoadError, match="Owner/toy@v2: cannot be fetched"):
        fetch_from_hub("Owner/toy@v2")


def test_what_was_fetched_serves_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    online = fetch_from_hub("Owner/toy", progress=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    n_fetched = len(hub.fetched)
    assert fetch_from_hub("Owner/toy") == online
    assert len(hub.fetched) == n_fetched
    with pytest.raises(ModelLoadError, match=r"(?s)Owner/other.*--model"):
        fetch_from_hub("Owner/other")


def test_a_model_that_wants_a_token_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(ModelLoadError, match=r"(?s)Owner/toy.*GatedRepoError"):
        fetch_from_hub("Owner/toy")


def test_a_model_that_is_not_there_is_named(hub: Hub) -> None:
    with pytest.raises(ModelLoadError, match=r"(?s)Owner/gone.*RepositoryNotFoundError.*--model"):
        fetch_from_hub("Owner/gone")


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False)])
def test_bars_are_shown_unless_they_are_not_wanted(
    hub: Hub, progress: bool, shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch_from_hub("Owner/toy", progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("Fetching" in err or "100%" in err) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Owner/name", True),
        ("a/b-c_1.5@refs/pr/3", True),
        ("Owner/name@", False),
        ("Owner", False),
        ("Owner/na/me", False),
        ("../etc", False),
        ("Owner/..@x", False),
        ("/etc/passwd", False),
        ("Owner/name@../x", False),
        ("Owner/name\n", False),
    ],
)
def test_hub_ids_are_told_from_paths(text: str, expected: bool) -> None:
    assert is_hub_id(text) == expected
