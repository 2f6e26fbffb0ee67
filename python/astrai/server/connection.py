"""The way from a stream's frames to its socket that leads around the application's layers.

A decode step gives every stream one event. Through the layers each of them is a system call under
the interpreter's lock, which the scheduler's thread waits for. Here the frames of a step are sent
by one call without the lock, as long as the client keeps up.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from astrai import _C
from astrai.server.turn_transport import TurnTransport

_EXTENSION = "astrai.transport"
# As uvicorn's other parser has it; this one has no limit of its own. A head whose end comes in the
# read that passes it is let through.
_MAX_HEAD_BYTES = 64 * 1024
_MAX_PIPELINED = 16  # requests that wait behind another one of their connection while it is read
_HEAD_S = 60.0  # for a whole head: from the opening of its connection, or from its first bytes
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_HEAD_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class TransportProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which sends what it writes in one turn together, and also tells the
    application the transport of a request. It reads no head of any length and waits for none for
    ever: the application, which limits bodies and asks for keys, sees a request when its head has
    ended."""

    # A head that has not ended, or what stands between the pieces of a body and behind it.
    _n_head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None  # for that, and for a connection's first head
    _answering: RequestResponseCycle | None = None  # behind which others may wait

    def data_received(self, data: bytes) -> None:
        self._n_head_bytes += len(data)
        super().data_received(data)
        if self._n_head_bytes > _MAX_HEAD_BYTES:
            self._refuse_head(_HEAD_TOO_LARGE)
        elif self._n_head_bytes and self._head_timer is None:
            self._expect_head()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse_head(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            # Behind a request that is being answered there is no place for another answer.
            if not self._is_answering():
                self.transport.write(answer)
            self.transport.close()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(_HEAD_S, self._head_is_late)

    def _expect_no_head(self) -> None:
        self._n_head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self._is_answering():  # bodies have no limit, nor does who asks again too early
            self._expect_head()
        else:
            # A client that has sent nothing may only have connected early.
            self._refuse_head(_HEAD_TOO_SLOW if self._n_head_bytes else b"")

    def on_body(self, body: bytes) -> None:
        self._expect_no_head()
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._expect_no_head()
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= _MAX_PIPELINED:
            # Read on, though requests wait: else nobody would notice that the client goes.
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        self._expect_no_head()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_head()
        super().connection_lost(exc)  # tells the request that was read last
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(TurnTransport(transport))
        self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"transport": self.transport}}


class StreamSocket:
    """The socket of one answer whose head is sent and whose body is chunked."""

    __slots__ = ("_writer", "fd", "transport")

    def __init__(self, transport: asyncio.WriteTransport, writer: StepWriter) -> None:
        self.transport = transport
        self.fd: int = transport.get_extra_info("socket").fileno()
        self._writer = writer

    def is_clear(self) -> bool:
        """Has everything before left the process? If not, the transport has to keep the order."""
        return not self.transport.get_write_buffer_size() and not self.transport.is_closing()

    def send(self, frames: bytes) -> None:
        """Have frames sent by the writer's next flush, on the same turn of the loop as is_clear."""
        self._writer.waiting.append((self, frames))


class StepWriter:
    """Sends the frames of a step together. For one event loop.

    waiting: what the next flush sends, in order."""

    def __init__(self) -> None:
        self.waiting: list[tuple[StreamSocket, bytes]] = []

    def flush(self) -> None:
        """Send what waits, each as one HTTP chunk; the transports write what does not fit."""
        if not self.waiting:
            return
        fds = [stream.fd for stream, _ in self.waiting]
        for idx, rest in _C.send_http_chunks(fds, [frames for _, frames in self.waiting]):
            self.waiting[idx][0].transport.write(rest)
        self.waiting.clear()


def stream_socket(scope: Scope, writer: StepWriter) -> StreamSocket | None:
    """The socket of a request; None where its bytes are not plain HTTP/1.1, or another server than
    `runner`'s runs the application."""
    told = scope.get("extensions", {}).get(_EXTENSION)
    if told is None or scope["http_version"] != "1.1":
        return None
    transport = told["transport"]
    # Not the scope's scheme: that is what a proxy says.
    is_encrypted = transport.get_extra_info("sslcontext") is not None
    return None if is_encrypted else StreamSocket(transport, writer)
