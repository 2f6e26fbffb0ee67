"""Two fake engines behind a forwarder on a port of the loopback, as Ray has it, without Ray."""

from __future__ import annotations

import pickle
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from astrai.deploy.forwarded import ForwardedRequest, answer
from astrai.deploy.forwarder import Forwarder
from astrai.deploy.prompt_routes import PromptRoutes, response_id_prefix
from astrai.server import ServerSettings, create_app
from astrai.server.errors import ApiError
from astrai.server.text_link import TextLink

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
from fake_engine import FakeEngine

NAMES = ("one", "two")


@dataclass
class Front:
    """The forwarder's port, and what lies behind it.

    requests: as they were forwarded. dies_after: messages after which the engine is gone; None for
    never. A request without a replica of its own goes to the engine whose turn it is.
    """

    http: httpx.Client
    engines: dict[str, FakeEngine]
    requests: list[ForwardedRequest] = field(default_factory=list)
    dies_after: int | None = None

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)


def text_link(settings: ServerSettings) -> TextLink:
    engine = FakeEngine()
    vocab_size = engine.config.vocab_size
    return TextLink(
        engine.tokenizer, engine.chat_template, vocab_size, engine.max_seq_len, settings
    )


@pytest.fixture
def start_front() -> Iterator[Callable[..., Front]]:
    """A function that starts a front with settings of the server."""
    started: list[tuple[uvicorn.Server, threading.Thread, Front]] = []

    def start(**values: Any) -> Front:
        settings = ServerSettings(**values)
        front = Front(httpx.Client(timeout=60), {name: FakeEngine() for name in NAMES})
        served = _Served(front, settings)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(served, log_level="warning", lifespan="on", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        front.http.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started.append((server, thread, front))
        return front

    yield start
    for server, thread, front in started:
        front.http.close()
        server.should_exit = True
        thread.join(60)


@pytest.fixture
def front(start_front: Callable[..., Front]) -> Front:
    return start_front()


class _Served:
    """The forwarder and the engines' applications in one process."""

    def __init__(self, front: Front, settings: ServerSettings) -> None:
        self._front = front
        self._apps = {
            name: create_app(engine, settings, response_id_prefix(name))  # type: ignore[arg-type]
            for name, engine in front.engines.items()
        }
        routes = PromptRoutes(text_link(settings))
        self._forwarder = Forwarder(self._dispatch, self._replicas, routes, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            if scope["type"] == "lifespan":
                for app in self._apps.values():
                    await stack.enter_async_context(app.router.lifespan_context(app))
            await self._forwarder(scope, receive, send)

    async def _dispatch(self, sent: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        front = self._front
        request: ForwardedRequest = pickle.loads(pickle.dumps(sent))
        front.requests.append(request)
        name = request.route.replica or NAMES[len(front.requests) % len(NAMES)]
        n_sent = 0
        async with aclosing(answer(self._apps[name], request)) as batches:
            async for batch in batches:
                for message in batch:
                    if n_sent == front.dies_after:
                        raise ApiError(503, "the engine is gone", retry_after_s=2)
                    n_sent += 1
                    yield [message]

    async def _replicas(self) -> dict[str, Any]:
        return {name: engine.client.stats() for name, engine in self._front.engines.items()}
