"""What every request passes: id, key, body limit, access log, metrics, and the last catch.

Plain ASGI: nothing is buffered and the connection's `receive` stays readable for disconnects.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai.server.errors import ApiError, error_response
from astrai.server.metrics import HttpMetrics
from astrai.server.settings import ServerSettings

_PARAMETER = re.compile(r"{(\w+)[^}]*}")  # of a route's path: {name} or {name:converter}
access_log = logging.getLogger("astrai.access")
log = logging.getLogger("astrai.server")

# Liveness probes carry no key; the page at / and its files hold no data.
OPEN_PATHS = frozenset({"/", "/health", "/ready"})
OPEN_PREFIX = "/static/"
# A refused body is still read up to this many times the limit: a client that writes before it
# reads would otherwise see a broken connection in place of the answer.
_DRAIN_FACTOR = 16


class Gate:
    """Outermost application layer but CORS."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: HttpMetrics) -> None:
        self._app = app
        self._keys = [key.encode() for key in settings.api_keys]
        self._metrics_public = settings.metrics_public
        self._max_body_bytes = settings.max_body_bytes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            if self._is_allowed(scope):
                limited = _LimitedBody(scope, receive, self._max_body_bytes)
                await self._app(scope, limited, exchange.send)
            else:
                await exchange.refuse(
                    receive, ApiError(401, "missing or wrong API key", code="invalid_api_key")
                )
        except ClientDisconnect:
            exchange.status = exchange.status or 499
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            if exchange.status is None:
                await exchange.refuse(receive, ApiError(500, "internal server error"))
        finally:
            exchange.finish(self._metrics)

    def _is_allowed(self, scope: Scope) -> bool:
        path = scope["path"]
        if not self._keys or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return True
        if path == "/metrics" and self._metrics_public:
            return True
        headers = dict(scope["headers"])
        given = headers.get(b"x-api-key", b"")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and token:
            given = token.strip()
        # Every key is compared, so that the time tells nothing. No key given is none of them.
        return given != b"" and sum(hmac.compare_digest(given, key) for key in self._keys) > 0


class _Exchange:
    """One request and its answer: adds the id headers, keeps what the log and metrics need."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = f"req_{secrets.token_hex(12)}"
        self.status: int | None = None
        self._scope = scope
        self._send = send
        self._start_s = time.monotonic()
        self._first_byte_s: float | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            # The two names that the official clients read.
            value = self.request_id.encode()
            headers = [
                *message.get("headers", ()),
                (b"x-request-id", value),
                (b"request-id", value),
            ]
            message = {**message, "headers": headers}
        elif self._first_byte_s is None:
            self._first_byte_s = time.monotonic() - self._start_s
        await self._send(message)

    async def refuse(self, receive: Receive, error: ApiError) -> None:
        headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
        response = error_response(self._scope["path"], error, headers)
        await response(self._scope, receive, self.send)

    def finish(self, metrics: HttpMetrics) -> None:
        total_s = time.monotonic() - self._start_s
        status = self.status or 499
        pattern = getattr(self._scope.get("route"), "path", None) or "other"
        # Braces are legal in a label, but simple readers of the format stop at the first one.
        route = _PARAMETER.sub(r":\1", pattern)
        metrics.observe(route, status, self._first_byte_s, total_s)
        # The path alone: no query, no body, no prompt.
        access_log.info(
            "%s %s %d %.0f ms %s",
            self._scope["method"],
            _printable(self._scope["path"]),
            status,
            total_s * 1000,
            self.request_id,
        )


class _LimitedBody:
    """`receive` that raises 413 once the body is larger than the limit."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._n_bytes = 0
        length = dict(scope["headers"]).get(b"content-length", b"")
        self._declared = int(length) if length.isdigit() else 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._n_bytes += len(message.get("body", b""))
        if max(self._declared, self._n_bytes) > self._limit:
            await self._drain(message)
            raise ApiError(
                413,
                f"the request body is larger than {self._limit} bytes",
                code="request_too_large",
            )
        return message

    async def _drain(self, message: Message) -> None:
        n_bytes = self._n_bytes
        while message.get("more_body") and n_bytes <= self._limit * _DRAIN_FACTOR:
            message = await self._receive()
            n_bytes += len(message.get("body", b""))


def _printable(path: Any) -> str:
    """A path for one log line: control characters escaped, length bounded."""
    return "".join(ch if ch.isprintable() else "?" for ch in path[:200])
