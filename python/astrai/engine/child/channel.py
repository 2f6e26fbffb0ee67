"""`Channel`: frames over a connected stream socket, sent without ever waiting for the other side.

    frame   4 bytes, little-endian: the length of what follows
            its content

What the socket does not take at once is kept, in order, and written by a thread that exists from
the first such frame on. Any thread may send; one thread receives.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from contextlib import suppress

__all__ = ["Channel"]

_HEAD = struct.Struct("<I")
_READ_BYTES = 1 << 16  # malloc serves larger buffers by mapping pages anew each time
_BUFFER_BYTES = 1 << 20  # the kernel grants what its limits allow


class Channel:
    """Owns its socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)  # waiting is told call by call
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket = connected
        self._received = bytearray()
        self._changed = threading.Condition()  # guards all below
        self._unsent: deque[memoryview] = deque()
        self._n_unsent_bytes = 0
        self._writer: threading.Thread | None = None
        self._is_closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def n_unsent_bytes(self) -> int:
        """Of frames that the other side has left no room for."""
        return self._n_unsent_bytes

    def send(self, content: bytes) -> None:
        """Send a frame, or keep it for the writer. One for a side that is gone is dropped: whoever
        receives here is told of the end."""
        frame = memoryview(_HEAD.pack(len(content)) + content)
        with self._changed:
            if self._is_closed:
                return
            if not self._unsent:
                try:
                    n_sent = self._socket.send(frame, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    n_sent = 0
                except OSError:
                    return
                frame = frame[n_sent:]
                if not frame:
                    return
            self._unsent.append(frame)
            self._n_unsent_bytes += len(frame)
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write, name="astrai-channel", daemon=True
                )
                self._writer.start()
            self._changed.notify_all()

    def receive(self, wait: bool = False) -> list[bytes] | None:
        """The contents of the frames that have come whole, of one read; None at the end. wait: for
        something to read, though it may not be a whole frame."""
        try:
            read = self._socket.recv(_READ_BYTES, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:  # a reset is an end too
            return None
        if not read:
            return None
        received = self._received
        received += read
        contents = []
        begin = 0
        while len(received) - begin >= _HEAD.size:
            (n_bytes,) = _HEAD.unpack_from(received, begin)
            end = begin + _HEAD.size + n_bytes
            if len(received) < end:
                break
            contents.append(bytes(received[begin + _HEAD.size : end]))
            begin = end
        del received[:begin]
        return contents

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent. False when the other side did not take it in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unsent, timeout_s)

    def close(self) -> None:
        """End both directions; the other side still gets what the socket holds. Idempotent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends what the writer waits for
        with self._changed:
            self._is_closed = True
            self._drop_unsent()
        if self._writer is not None:
            self._writer.join()
        self._socket.close()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsent or self._is_closed)
                if self._is_closed:
                    return
                frame = self._unsent[0]
            try:
                n_sent = self._socket.send(frame)  # only this thread sends while frames wait
            except OSError:
                n_sent = None
            with self._changed:
                if n_sent is None or self._is_closed:
                    self._drop_unsent()
                    continue
                self._n_unsent_bytes -= n_sent
                if n_sent < len(frame):
                    self._unsent[0] = frame[n_sent:]
                else:
                    self._unsent.popleft()
                self._changed.notify_all()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._n_unsent_bytes = 0
        self._changed.notify_all()
