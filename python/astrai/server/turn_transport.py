"""A transport whose writes of one turn of the event loop leave together.

The HTTP server writes the head of an answer, each part of its body and its end by themselves. Each
write is a system call under the interpreter's lock, and each wakes a client that waits.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["TurnTransport"]


class TurnTransport(asyncio.Transport):
    """What `HttpToolsProtocol` and `StreamSocket` use of a transport. For one event loop.

    What waits counts as written and not sent, and goes before the transport closes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._waiting: list[bytes | bytearray | memoryview] = []
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data:
            return
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)

    def flush(self) -> None:
        """Hand on what waits. Without effect on a transport that is closed meanwhile."""
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            if not self._transport.is_closing():
                self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._waiting)) + self._transport.get_write_buffer_size()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._waiting.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
