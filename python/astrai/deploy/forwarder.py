"""The ASGI application in front of several engines: it reads a request, finds its route, hands both
on and writes what comes back.

It answers nothing itself but GET /replicas and what goes wrong on the way: keys, limits and shapes
are the matter of the engines' own servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from astrai.deploy.forwarded import ForwardedRequest, Route
from astrai.deploy.prompt_routes import PromptRoutes
from astrai.server.anthropic import AnthropicResponseBuilder
from astrai.server.api_keys import KeyRing
from astrai.server.disconnect import ClientGone, DisconnectWatch
from astrai.server.errors import ApiError, error_response, is_anthropic, route_path
from astrai.server.openai_common import error_frames
from astrai.server.settings import ServerSettings
from astrai.server.sse import encode_json

__all__ = ["REPLICA_HEADER", "Dispatch", "Forwarder"]

log = logging.getLogger("astrai.deploy")

# Name -> counters of each engine that runs.
Replicas = Callable[[], Awaitable[dict[str, Any]]]
# Closing the batches ends the request. Raises ApiError when no engine can answer.
Dispatch = Callable[[ForwardedRequest], AsyncGenerator[list[Message], None]]

REPLICA_HEADER = b"x-astrai-replica"
_HEAD = ("type", "asgi", "http_version", "method", "scheme", "path", "query_string", "client")
# A body that is too large is still read up to this many times the limit, as the server does it.
_DRAIN_FACTOR = 16


class Forwarder:
    """One request after another to `dispatch`, each with its route."""

    def __init__(
        self,
        dispatch: Dispatch,
        replicas: Replicas,
        routes: PromptRoutes,
        settings: ServerSettings,
    ) -> None:
        self._dispatch = dispatch
        self._replicas = replicas
        self._routes = routes
        self._keys = KeyRing(settings.api_keys)
        self._max_body_bytes = settings.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._forward(scope, receive, _Answer(scope, receive, send))
        else:
            await send({"type": "websocket.close"})

    async def _forward(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        body = await self._read_body(receive)
        if body is None:
            return
        watch = DisconnectWatch(receive)
        try:
            await watch.guard(self._exchange(scope, body, answer))
        except ClientGone:
            pass
        except ApiError as error:
            await answer.fail(error)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            await answer.fail(ApiError(500, "internal server error"))
        finally:
            watch.close()

    async def _exchange(self, scope: Scope, body: bytes, answer: _Answer) -> None:
        is_look = route_path(scope) == "/replicas" and scope["method"] == "GET"
        if is_look and self._keys.admits(scope):
            await answer.send_json({"replicas": await self._replicas()})
            return
        request = ForwardedRequest(_head(scope), body, await self._route(scope, body))
        batches = self._dispatch(request)
        try:
            async for batch in batches:
                for message in batch:
                    await answer.send(message)
        finally:
            await batches.aclose()

    async def _route(self, scope: Scope, body: bytes) -> Route:
        asked = dict(scope["headers"]).get(REPLICA_HEADER)
        if asked is not None:
            return Route(replica=asked.decode("latin-1"), is_strict=True)
        if not self._keys.admits(scope):
            return Route()  # no work for a stranger: the server will refuse the request
        return await asyncio.to_thread(self._routes.of, route_path(scope), body)

    async def _read_body(self, receive: Receive) -> bytes | None:
        """The body, or as much as shows that it is too large; None if the client goes."""
        limit, n_bytes = self._max_body_bytes, 0
        body = bytearray()
        while n_bytes <= limit * _DRAIN_FACTOR:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            n_bytes += len(part)
            body += part[: limit + 1 - len(body)]
            if not message.get("more_body"):
                break
        return bytes(body)


class _Answer:
    """What is written to the client, and the end of it when something breaks."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_started = False
        self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_started = True
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._is_stream = kind.startswith(b"text/event-stream")
        await self._send(message)

    async def send_json(self, payload: dict[str, Any]) -> None:
        response = Response(encode_json(payload), media_type="application/json")
        await response(self._scope, self._receive, self.send)

    async def fail(self, error: ApiError) -> None:
        """An error answer; in a stream that has begun, its protocol's last event."""
        path = route_path(self._scope)
        if not self._is_started:
            await error_response(path, error)(self._scope, self._receive, self._send)
            return
        if not self._is_stream:
            raise error  # half a document: the connection has to break
        is_messages = is_anthropic(path)
        build = AnthropicResponseBuilder().format_stream_error if is_messages else error_frames
        await self._send({"type": "http.response.body", "body": build(error), "more_body": False})


def _head(scope: Scope) -> Scope:
    """The scope without what belongs to this process, its path as the routes name it."""
    head = {name: scope[name] for name in _HEAD if name in scope}
    path = route_path(scope)
    client = scope.get("client")
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    if client:
        # The inspector opens itself to clients of its own machine, which nobody behind this is.
        headers.append((b"x-forwarded-for", str(client[0]).encode()))
    return {**head, "path": path, "raw_path": path.encode(), "root_path": "", "headers": headers}


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start or stop."""
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})
