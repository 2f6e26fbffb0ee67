"""What every request passes: id, key, body limit, access log, metrics, and the last catch.

Plain ASGI: nothing is buffered and the connection's `receive` stays readable for disconnects.
"""

from __future__ import annotations

import logging
import re
import secrets

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai.server.access_log import AccessRecord
from astrai.server.api_keys import KeyRing
from astrai.server.errors import ApiError, error_response, route_path
from astrai.server.metrics import HttpMetrics
from astrai.server.settings import ServerSettings

log = logging.getLogger("astrai.server")

_PARAMETER = re.compile(r"{(\w+)[^}]*}")  # of a route's path: {name} or {name:converter}
# An id that a client chose goes into a header and a log line, so it is short and plain.
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")

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
        self._keys = KeyRing(settings.api_keys)
        self._settings = settings
        self._metrics = metrics
        root = (settings.root_path or "").strip("/")
        self._root_path = f"/{root}" if root else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # HEAD is served as the GET it stands for; the HTTP server leaves the body out.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        scope = {**scope, "method": method, "root_path": self._root_path}
        record = AccessRecord(scope, _request_id(scope), self._settings.log_prompts)
        exchange = _Exchange(scope, send, record)
        try:
            if self._is_allowed(scope):
                limited = _LimitedBody(scope, receive, self._settings.max_body_bytes)
                await self._app(scope, limited, exchange.send)
            else:
                error = ApiError(401, "missing or wrong API key", code="invalid_api_key")
                await exchange.refuse(receive, error)
        except ClientDisconnect:
            record.status = record.status or 499
        except Exception:
            log.exception("request %s failed", record.request_id)
            if record.status is None:
                await exchange.refuse(receive, ApiError(500, "internal server error"))
        finally:
            exchange.finish(self._metrics)

    def _is_allowed(self, scope: Scope) -> bool:
        path = route_path(scope)
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return True
        if path == "/metrics" and self._settings.metrics_public:
            return True
        return self._keys.admits(scope)


class _Exchange:
    """One request and its answer: adds the id headers, keeps what the log and metrics need."""

    def __init__(self, scope: Scope, send: Send, record: AccessRecord) -> None:
        self._scope = scope
        self._send = send
        self._record = record

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
            # The two names that the official clients read.
            value = self._record.request_id.encode()
            headers = [
                *message.get("headers", ()),
                (b"x-request-id", value),
                (b"request-id", value),
            ]
            message = {**message, "headers": headers}
        else:
            self._record.wrote()
        await self._send(message)

    async def refuse(self, receive: Receive, error: ApiError) -> None:
        headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
        response = error_response(route_path(self._scope), error, headers)
        await response(self._scope, receive, self.send)

    def finish(self, metrics: HttpMetrics) -> None:
        record = self._record
        pattern = getattr(self._scope.get("route"), "path", None) or "other"
        # Braces are legal in a label, but simple readers of the format stop at the first one.
        route = _PARAMETER.sub(r":\1", pattern)
        metrics.observe(route, record.status or 499, record.first_byte_s, record.seconds())
        record.write()


class _LimitedBody:
    """`receive` that raises 413 once the body is larger than the limit."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._n_bytes = 0
        length = dict(scope["headers"]).get(b"content-length", b"")
        self._declared = int(length) if length.isdigit() else 0

    async def __call__(self) -> Message:
        if self._declared > self._limit * _DRAIN_FACTOR:
            raise self._too_large()  # at once: it would not be read to its end anyway
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._n_bytes += len(message.get("body", b""))
        if max(self._declared, self._n_bytes) > self._limit:
            await self._drain(message)
            raise self._too_large()
        return message

    def _too_large(self) -> ApiError:
        message = f"the request body is larger than {self._limit} bytes"
        return ApiError(413, message, code="request_too_large")

    async def _drain(self, message: Message) -> None:
        n_bytes = self._n_bytes
        while message.get("more_body") and n_bytes <= self._limit * _DRAIN_FACTOR:
            message = await self._receive()
            n_bytes += len(message.get("body", b""))


def _request_id(scope: Scope) -> str:
    """The client's own id when it is short and plain, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return f"req_{secrets.token_hex(12)}"
