"""scripts/make_index: what pip finds in the index, over file:// and over HTTP."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from script_folder import SCRIPTS
from small_wheel import write_wheel

from release.wheel_file import sha256


def make_index(wheels: Path, index: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPTS / "make_index", wheels, index]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 0.1.0+cpu, 0.1.0+cu130 and a later version for a Python that is not there yet."""
    folder = tmp_path_factory.mktemp("index")
    for version in ("0.1.0+cpu", "0.1.0+cu130"):
        write_wheel(folder / "wheels", version)
    write_wheel(folder / "wheels", "0.2.0+cpu", requires_python=">=3.99")
    done = make_index(folder / "wheels", folder / "index")
    assert done.returncode == 0, done.stderr
    return folder / "index"


class QuietHandler(SimpleHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 - the paths of all requests, for the tests to read

    def log_message(self, format: str, *args: object) -> None:
        self.asked.append(self.path)


@pytest.fixture(scope="module")
def http_index(index: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(index))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def download(url: str, requirement: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """pip with an empty main index and ours beside it, free of this machine's settings."""
    empty = folder / "main" / "astrai"
    empty.mkdir(parents=True)
    (empty / "index.html").write_text("<!DOCTYPE html><html><body></body></html>")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder / "got"]
    command += ["--index-url", (folder / "main").as_uri(), "--extra-index-url", url, requirement]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = {**plain, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def got(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "got").glob("*.whl"))


def test_pip_takes_the_named_variant_from_a_file_url(index: Path, tmp_path: Path) -> None:
    done = download(index.as_uri(), "astrai==0.1.0+cpu", tmp_path)
    assert done.returncode == 0, done.stderr
    assert got(tmp_path) == ["astrai-0.1.0+cpu-py3-none-any.whl"]


def test_the_folder_of_a_variant_holds_that_variant_alone(index: Path, tmp_path: Path) -> None:
    done = download((index / "cu130").as_uri(), "astrai", tmp_path)
    assert done.returncode == 0, done.stderr
    assert got(tmp_path) == ["astrai-0.1.0+cu130-py3-none-any.whl"]


def test_pip_takes_a_wheel_over_http_and_checks_its_metadata(
    http_index: str, tmp_path: Path
) -> None:
    QuietHandler.asked.clear()
    done = download(http_index + "/cpu", "astrai", tmp_path)
    assert done.returncode == 0, done.stderr
    assert got(tmp_path) == ["astrai-0.1.0+cpu-py3-none-any.whl"]
    assert "/astrai/astrai-0.1.0%2Bcpu-py3-none-any.whl.metadata" in QuietHandler.asked


def test_a_wheel_that_was_changed_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "0.1.0+cpu")
    assert make_index(tmp_path / "wheels", tmp_path / "index").returncode == 0
    write_wheel(tmp_path / "index" / "astrai", "0.1.0+cpu", module=b"evil = True\n")
    done = download((tmp_path / "index").as_uri(), "astrai", tmp_path)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_another_python_is_told_which_one_is_needed(index: Path, tmp_path: Path) -> None:
    done = download(index.as_uri(), "astrai==0.2.0+cpu", tmp_path)
    assert done.returncode != 0
    assert "0.2.0+cpu Requires-Python >=3.99" in done.stderr


def test_links_have_hashes_and_escaped_names(index: Path) -> None:
    page = (index / "astrai" / "index.html").read_text()
    wheel = index / "astrai" / "astrai-0.1.0+cpu-py3-none-any.whl"
    digest = sha256(wheel.read_bytes())
    assert f'href="astrai-0.1.0%2Bcpu-py3-none-any.whl#sha256={digest}"' in page
    assert 'data-requires-python="&gt;=3.10"' in page


def test_wheels_are_added_and_never_changed(tmp_path: Path) -> None:
    write_wheel(tmp_path / "first", "0.1.0+cpu")
    write_wheel(tmp_path / "second", "0.1.1+cpu")
    write_wheel(tmp_path / "third", "0.1.1+cpu", module=b"changed = True\n")
    assert make_index(tmp_path / "first", tmp_path / "index").returncode == 0
    assert make_index(tmp_path / "second", tmp_path / "index").returncode == 0
    page = (tmp_path / "index" / "cpu" / "astrai" / "index.html").read_text()
    assert page.count("<a href") == 2

    done = make_index(tmp_path / "third", tmp_path / "index")
    assert done.returncode == 1
    assert "a published wheel never changes" in done.stderr


def test_a_folder_of_no_or_of_mixed_wheels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    write_wheel(tmp_path / "mixed")
    write_wheel(tmp_path / "mixed", distribution="other")
    for folder, count in (("none", 0), ("mixed", 2)):
        done = make_index(tmp_path / folder, tmp_path / "index")
        assert done.returncode == 1
        assert f"has wheels of {count} projects" in done.stderr
