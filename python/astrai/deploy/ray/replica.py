"""One engine as a Ray Serve deployment: the application of astrai-serve without its port."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from ray import serve
from starlette.types import Message

from astrai.cli.serve import configure_logging, load_engine
from astrai.deploy.forwarded import ForwardedRequest, answer
from astrai.deploy.forwarder import REPLICA_HEADER
from astrai.deploy.prompt_routes import response_id_prefix
from astrai.server.app import create_app
from astrai.server.collector import quiet_collector
from astrai.server.errors import ApiError, error_response, route_path
from astrai.server.settings import ServerSettings

__all__ = ["EngineReplica"]


class EngineReplica:
    """Answers forwarded requests. Ray makes it, asks after its health, drains it and ends it."""

    async def __init__(self, settings: ServerSettings) -> None:  # type: ignore[misc]
        self._running = AsyncExitStack()  # first: Ray also ends what could not be made
        configure_logging(settings)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        _, self._engine = await asyncio.to_thread(load_engine, settings)
        self._running.push_async_callback(asyncio.to_thread, self._engine.shutdown)
        self._app = create_app(self._engine, settings, response_id_prefix(self._name))
        lifespan = self._app.router.lifespan_context(self._app)
        await self._running.enter_async_context(lifespan)
        quiet_collector()

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """The application's answer in batches of ASGI messages, with this replica's name in it."""
        is_misled = request.route.is_strict and request.route.replica != self._name
        app = _no_such_replica if is_misled else self._app
        async with aclosing(answer(app, request)) as batches:
            async for batch in batches:
                yield [self._signed(message) for message in batch]

    def _signed(self, message: Message) -> Message:
        if message["type"] != "http.response.start":
            return message
        # Ray's proxy adds the request's id itself.
        kept = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
        return {**message, "headers": [*kept, (REPLICA_HEADER, self._name.encode())]}

    def stats(self) -> tuple[str, dict[str, Any]]:
        """This replica's name; its process and its engine's counters."""
        return self._name, {"pid": os.getpid(), **self._engine.get_stats()}

    def check_health(self) -> None:
        """Raises once the engine's loop is dead; Ray then starts another replica."""
        if not self._engine.client.is_healthy():
            raise RuntimeError(f"the engine of replica {self._name} has stopped after a fault")

    async def __del__(self) -> None:
        """Called by Ray when the open requests have ended or had their time."""
        await self._running.aclose()


async def _no_such_replica(scope: Any, receive: Any, send: Any) -> None:
    error = ApiError(404, "there is no such replica; GET /replicas names them", code="no_replica")
    await error_response(route_path(scope), error)(scope, receive, send)
