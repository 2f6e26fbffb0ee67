"""The page's files and the inspector's route over HTTP: headers, caching, who may look."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from live_server import Live

import astrai.server.page_routes as page_routes

FOLDER = Path(page_routes.__file__).parent / "page"
NAMES = sorted(path.name for path in FOLDER.iterdir())
SECRET = "my secret prompt"


def test_the_page_is_served_with_its_policy(live: Live) -> None:
    answer = live.http.get("/")
    assert answer.status_code == 200 and answer.text.startswith("<!doctype html>")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert live.http.head("/").status_code == 200


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_served_and_revalidated(live: Live, name: str) -> None:
    answer = live.http.get(f"/static/{name}")
    assert answer.status_code == 200 and answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["cache-control"] == "no-cache"
    tag = answer.headers["etag"]
    again = live.http.get(f"/static/{name}", headers={"if-none-match": f'"other", W/{tag}'})
    assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == tag


@pytest.mark.parametrize("name", ["", "nothing.js", "../page_routes.py", "%2e%2e/app.py", "a%00"])
def test_nothing_else_is_served(live: Live, name: str) -> None:
    assert live.http.get(f"/static/{name}").status_code == 404


def test_the_page_names_only_its_own_files_by_relative_addresses() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        outside = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"']*", text)
        assert set(outside) <= {"http://www.w3.org/2000/svg"}, path.name
        for name in re.findall(r'from "\./([\w.]+)"|(?:href|src)="static/([\w.]+)"', text):
            assert "".join(name) in NAMES, (path.name, name)
        assert not re.search(r'(?:href|src)="/|fetch\("/|getJson\([`"]/', text), path.name


def test_no_script_writes_markup() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    for path in FOLDER.glob("*.js"):
        assert not re.search(forbidden, path.read_text(encoding="utf-8")), path.name


def test_the_page_is_open_and_the_inspector_is_not_where_keys_are_set(
    start_server: Callable[..., Live],
) -> None:
    live = start_server(FakeEngine(), api_keys=("k",))
    assert live.http.get("/").status_code == 200
    assert live.http.get("/static/app.js").status_code == 200
    assert live.http.get("/debug/inspector").status_code == 401
    headers = {"x-api-key": "k", "host": "models.example.org", "x-forwarded-for": "10.1.2.3"}
    assert live.http.get("/debug/inspector", headers=headers).status_code == 200


def test_the_inspector_tells_requests_pages_tree_and_new_steps(live: Live) -> None:
    live.post("/v1/completions", {"prompt": SECRET, "max_tokens": 1})
    answer = live.http.get("/debug/inspector?since=1")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    told = answer.json()
    assert told["running"] == 1 and told["requests"][0]["state"] == "prefill"
    assert told["pages"] == {"total": 10, "free": 5, "cached": 3, "held": 2, "page_size": 16}
    (edge,) = told["tree"]["edges"]
    assert edge["text"] == SECRET and edge["ref_count"] == 1 and not edge["is_cut"]
    assert told["last_step"] == 3 and [step["idx"] for step in told["steps"]] == [2, 3]
    assert told["steps"][0] == {
        "idx": 2,
        "ended_s": 102.0,
        "duration_s": 0.25,
        "prefill_tokens": 0,
        "decode_rows": 2,
        "sampled_tokens": 2,
        "itl_s": None,
        "ttft_s": [],
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "models.example.org"},
        {"host": "127.0.0.1.example.org"},
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-for": "10.1.2.3"},
        {"forwarded": "for=10.1.2.3"},
        {"origin": "https://example.org"},
        {"origin": "null"},
    ],
)
def test_without_keys_only_this_machine_may_look(live: Live, headers: dict[str, str]) -> None:
    live.post("/v1/completions", {"prompt": SECRET, "max_tokens": 1})
    answer = live.http.get("/debug/inspector", headers=headers)
    assert answer.status_code == 403 and SECRET not in answer.text
    assert "--api-key" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["localhost:8000", "[::1]:8000", "127.0.0.1", "a.localhost"])
def test_this_machine_has_several_names(live: Live, host: str) -> None:
    assert live.http.get("/debug/inspector", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("since", ["-1", "x", "1e3", "9" * 30, "٣"])
def test_a_since_that_is_no_step_is_400(live: Live, since: str) -> None:
    answer = live.http.get("/debug/inspector", params={"since": since})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "since"


def test_many_pages_share_a_look(live: Live) -> None:
    assert live.engine is not None
    before = live.engine.client.n_inspections
    for _ in range(20):
        assert live.http.get("/debug/inspector").status_code == 200
    assert live.engine.client.n_inspections - before < 20


def test_the_polls_of_an_open_inspector_do_not_fill_the_log(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="astrai.access"):
        live.http.get("/debug/inspector")
        live.http.get("/debug/inspector", headers={"host": "models.example.org"})
        live.http.get("/health")
        for _ in range(6000):  # a line is written after the answer
            if any("/health" in record.getMessage() for record in caplog.records):
                break
            time.sleep(0.01)
    paths = [record.getMessage().split()[1:3] for record in caplog.records]
    assert paths == [["/debug/inspector", "403"], ["/health", "200"]]


def test_without_a_model_there_is_nothing_to_inspect(unloaded: Live) -> None:
    assert unloaded.http.get("/debug/inspector").status_code == 503
