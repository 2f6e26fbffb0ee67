"""A live server over the fake engine, on a free port of this machine's loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from fake_engine import FakeEngine, FakeScript

from astrai.server import ServerSettings, create_app


@dataclass
class Live:
    """A running server and a client for it."""

    engine: FakeEngine | None
    url: str
    http: httpx.Client

    @property
    def script(self) -> FakeScript:
        assert self.engine is not None
        return self.engine.script

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def stream(self, path: str, body: dict[str, Any]) -> str:
        """The raw text of a whole event stream."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return response.text

    def wait_idle(self) -> dict[str, Any]:
        for _ in range(200):
            stats: dict[str, Any] = self.http.get("/stats").json()
            if not stats["active_tasks"]:
                return stats
            time.sleep(0.02)
        raise AssertionError("the engine stays busy")


@pytest.fixture(scope="session")
def start_server() -> Iterator[Callable[..., Live]]:
    """A function that starts servers; all stop at the end of the session."""
    started: list[tuple[uvicorn.Server, threading.Thread, httpx.Client]] = []

    def start(engine: FakeEngine | None, **settings: Any) -> Live:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        app = create_app(engine, ServerSettings(**settings))  # type: ignore[arg-type]
        config = uvicorn.Config(app, log_level="warning", lifespan="on", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = httpx.Client(base_url=url, timeout=20)
        started.append((server, thread, client))
        return Live(engine, url, client)

    yield start
    for server, thread, client in started:
        client.close()
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="session")
def _shared(start_server: Callable[..., Live]) -> Live:
    return start_server(FakeEngine())


@pytest.fixture
def live(_shared: Live) -> Iterator[Live]:
    """The shared server with a fresh script."""
    engine = _shared.engine
    assert engine is not None
    engine.script = engine.client.script = FakeScript()
    engine.client.requests.clear()
    yield _shared
    engine.script.hold.clear()


@pytest.fixture(scope="session")
def unloaded(start_server: Callable[..., Live]) -> Live:
    return start_server(None)
