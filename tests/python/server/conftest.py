"""A live server over the fake engine, on a free port of this machine's loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from browser import Browser, Page, chromium, find_chromium
from child_seam import behind_a_channel
from fake_engine import FakeEngine, FakeScript
from live_server import Live
from starlette.types import ASGIApp, Receive, Scope, Send

from astrai.server import ServerSettings, create_app
from astrai.server.connection import TransportProtocol


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[..., Live]]:
    """A function that starts servers; all stop at the end of the session."""
    started: list[tuple[uvicorn.Server, threading.Thread, httpx.Client]] = []
    in_child: list[Any] = []

    def start(
        engine: FakeEngine | None,
        proxy_path: str = "",
        response_id_prefix: str = "resp_",
        is_in_child: bool = False,
        **settings: Any,
    ) -> Live:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        served: Any = behind_a_channel(engine) if engine and is_in_child else engine
        app = create_app(
            served,
            ServerSettings(**settings),
            response_id_prefix,
        )
        shown = _behind(app, proxy_path) if proxy_path else app
        config = uvicorn.Config(
            shown, log_level="warning", lifespan="on", ws="none", http=TransportProtocol
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = httpx.Client(base_url=url, timeout=60)
        started.append((server, thread, client))
        if is_in_child:
            in_child.append(served)
        return Live(engine, url, client)

    yield start
    for server, thread, client in started:
        client.close()
        server.should_exit = True
        thread.join(10)
    for served in in_child:
        served.shutdown()


def _behind(app: ASGIApp, path: str) -> ASGIApp:
    """The app as a proxy shows it that serves it under a path and takes that off."""

    async def proxied(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert scope["path"].startswith(path + "/"), scope["path"]
            scope = {**scope, "path": scope["path"].removeprefix(path)}
        await app(scope, receive, send)

    return proxied


@pytest.fixture(scope="session", params=[False, True], ids=["in_process", "in_child"])
def _shared(start_server: Callable[..., Live], request: pytest.FixtureRequest) -> Live:
    return start_server(FakeEngine(), is_in_child=request.param)


@pytest.fixture
def live(_shared: Live) -> Iterator[Live]:
    """The shared server with a fresh script."""
    engine = _shared.engine
    assert engine is not None
    engine.script = engine.client.script = FakeScript()
    engine.client.requests.clear()
    engine.client.n_cancelled = 0
    yield _shared
    engine.script.hold.clear()


@pytest.fixture(scope="session")
def unloaded(start_server: Callable[..., Live]) -> Live:
    return start_server(None)


@pytest.fixture(scope="session")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        reason = "needs a Chromium on PATH (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with chromium(program, tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(_browser: Browser) -> Iterator[Page]:
    """A fresh tab. The test ends with no error on its console, unless it took it off the list."""
    with _browser.page() as page:
        yield page
        page.run("1")  # takes in what the browser has said until now
        assert page.problems == []
