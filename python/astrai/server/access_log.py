"""One log line for each request: text, or JSON for a collector of logs.

A line never holds the body unless the server was asked to log prompts, and never an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import Scope

log = logging.getLogger("astrai.access")

_STATE = "access"
_MAX_PATH = 200
_MAX_BODY_BYTES = 16 * 1024
_POLLED = "/debug/inspector"  # asked once a second by each open inspector
# Keys of a text line; the others stand in every line, at their place.
_OPTIONAL = ("prompt_tokens", "cached_tokens", "completion_tokens", "finish_reason", "body")


class Outcome(Protocol):
    """What the log tells of a generation."""

    n_prompt: int
    n_cached: int
    n_output: int
    finish_reason: str | None


class AccessRecord:
    """What is known about one exchange; the layers below fill it in.

    outcomes: one for each choice, read when the answer has ended.
    """

    def __init__(self, scope: Scope, request_id: str, keeps_body: bool) -> None:
        self.request_id = request_id
        self.status: int | None = None
        self.outcomes: Sequence[Outcome] = ()
        self._keeps_body = keeps_body
        self._body: bytes | None = None
        # Not the scope itself, which has this record: of such a circle the collector would have to
        # get rid, with the prompt and all that hangs on the request.
        self._method: str = scope["method"]
        self._path: str = scope["path"]
        self._client: str | None = (scope.get("client") or (None,))[0]
        self._start_s = time.monotonic()
        self._first_byte_s: float | None = None
        scope.setdefault("state", {})[_STATE] = self

    @property
    def first_byte_s(self) -> float | None:
        return self._first_byte_s

    def seconds(self) -> float:
        """Since the request's head was read."""
        return time.monotonic() - self._start_s

    def wrote(self) -> None:
        """A part of the answer's body has been written."""
        if self._first_byte_s is None:
            self._first_byte_s = self.seconds()

    def read(self, body: bytes) -> None:
        """The request's whole body; kept for the log when the server logs prompts."""
        if self._keeps_body:
            self._body = body[:_MAX_BODY_BYTES]

    def write(self) -> None:
        """The log line."""
        is_poll = self.status == 200 and self._path.endswith(_POLLED)
        level = logging.DEBUG if is_poll else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields = self._fields()
        head = "{method} {path} {status} {duration_ms:.0f} ms {request_id}".format_map(fields)
        rest = [f"{key}={value!r}" for key, value in fields.items() if key in _OPTIONAL]
        log.log(level, "%s", " ".join([head, *rest]), extra={"fields": fields})

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "method": self._method,
            "path": _printable(self._path),
            "status": self.status or 499,
            "duration_ms": round(self.seconds() * 1000, 3),
            "request_id": self.request_id,
            "client": self._client,
        }
        if self._first_byte_s is not None:
            fields["first_byte_ms"] = round(self._first_byte_s * 1000, 3)
        if self.outcomes:
            fields["prompt_tokens"] = self.outcomes[0].n_prompt
            fields["cached_tokens"] = self.outcomes[0].n_cached
            fields["completion_tokens"] = sum(outcome.n_output for outcome in self.outcomes)
            fields["finish_reason"] = self.outcomes[0].finish_reason
        if self._body is not None:
            fields["body"] = self._body.decode("utf-8", errors="replace")
        return fields


def access_record(request: Request) -> AccessRecord:
    """The record of the exchange that a request belongs to."""
    record: AccessRecord = request.scope["state"][_STATE]
    return record


def _printable(path: Any) -> str:
    """A path for one log line: control characters escaped, length bounded."""
    return "".join(ch if ch.isprintable() else "?" for ch in path[:_MAX_PATH])
