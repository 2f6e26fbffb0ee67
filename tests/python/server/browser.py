"""A headless Chromium driven over its DevTools protocol: no driver program in between.

https://chromedevtools.github.io/devtools-protocol/
Everything the browser says on the way is kept: console messages, uncaught exceptions, requests.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
DESKTOP = (1280, 860)
PHONE = (360, 740)
_PATIENCE_S = 30.0
# Virtual key codes, which pages read beside the names.
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


def find_chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. Methods wait for the browser's answer."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.problems: list[str] = []  # console errors and warnings, uncaught exceptions
        self.requested: list[str] = []  # every address the tab asked for
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its result; events that come before it are noted."""
        command_id = next(self._ids)
        self._connection.send(json.dumps({"id": command_id, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(timeout=_PATIENCE_S))
            if message.get("id") != command_id:
                self._note(message)
                continue
            assert "error" not in message, f"{method}: {message['error']}"
            result: dict[str, Any] = message["result"]
            return result

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(params["args"])[:2000])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(json.dumps(params["entry"])[:2000])

    def run(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression, awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = _PATIENCE_S) -> Any:
        """Until a JavaScript expression is true; returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(expression)
            if value:
                return value
            time.sleep(0.02)
        text = self.run("document.body.innerText")
        raise AssertionError(f"never true: {expression}\nthe page says:\n{text}\n{self.problems}")

    def go(self, url: str) -> None:
        answer = self.send("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"
        self.wait("document.readyState === 'complete'")

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    def scheme(self, name: str) -> None:
        """light or dark, as the system would say."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        common = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": _KEYS[key],
            "modifiers": 8 if shift else 0,
        }
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector: str) -> None:
        """With the mouse, at the middle of the element: what covers it gets the click."""
        box = self.run(
            f"(() => {{const e = document.querySelector({selector!r}); e.scrollIntoView("
            "{block: 'nearest'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    def text(self, selector: str) -> str:
        found: str = self.run(f"document.querySelector({selector!r}).innerText")
        return found

    def screenshot(self, path: Path) -> None:
        answer = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


class Browser:
    """A Chromium process with a profile of its own."""

    def __init__(self, port: int) -> None:
        self._port = port

    @contextmanager
    def page(self) -> Iterator[Page]:
        """A new tab of desktop size in a context of its own: no storage of earlier ones."""
        with connect(self._address(), max_size=None, ping_interval=None) as browser:
            context = _call(browser, "Target.createBrowserContext")["browserContextId"]
            target = _call(
                browser, "Target.createTarget", url="about:blank", browserContextId=context
            )["targetId"]
            url = f"ws://127.0.0.1:{self._port}/devtools/page/{target}"
            try:
                with connect(url, max_size=None, ping_interval=None) as connection:
                    page = Page(connection)
                    page.size(*DESKTOP)
                    yield page
            finally:
                _call(browser, "Target.disposeBrowserContext", browserContextId=context)

    def _address(self) -> str:
        version = httpx.get(f"http://127.0.0.1:{self._port}/json/version").json()
        address: str = version["webSocketDebuggerUrl"]
        return address


def _call(connection: ClientConnection, method: str, **params: Any) -> dict[str, Any]:
    connection.send(json.dumps({"id": 1, "method": method, "params": params}))
    while True:
        message = json.loads(connection.recv(timeout=_PATIENCE_S))
        if message.get("id") == 1:
            result: dict[str, Any] = message["result"]
            return result


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Browser]:
    """A running browser; it ends with the block."""
    command = [
        program,
        "--headless=new",
        f"--user-data-dir={profile}",
        "--remote-debugging-port=0",
        "--no-first-run",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP models.test 127.0.0.1",
    ]
    if os.geteuid() == 0 or os.environ.get("CI"):
        command.append("--no-sandbox")  # it cannot be had as root, nor in most containers
    said = profile / "stderr.txt"
    with said.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        yield Browser(_port(process, profile / "DevToolsActivePort", said))
    finally:
        process.terminate()
        process.wait(20)


def _port(process: subprocess.Popen[bytes], file: Path, said: Path) -> int:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        lines = file.read_text().split() if file.exists() else []
        if lines:
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError(f"chromium ({process.poll()}) opened no port:\n{said.read_text()[-2000:]}")
