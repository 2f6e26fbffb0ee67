"""The answer of a streamed request: frames written as they come, until the client goes."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from astrai.server.disconnect import ClientGone, DisconnectWatch


class EventStream(Response):
    """A text/event-stream answer over an async generator of frames.

    Owns the generator and the watch: both are closed when the stream ends, for whatever reason.
    Closing the generator is what cancels the generation.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        watch: DisconnectWatch,
        is_chunked: bool = False,
    ) -> None:
        """is_chunked: the HTTP server has to send the body in chunks, as others do too."""
        self._frames = frames
        self._watch = watch
        self.status_code = 200
        self.background = None
        # x-accel-buffering: nginx would hold frames back to fill its buffer.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        if is_chunked:
            headers["transfer-encoding"] = "chunked"
        self.init_headers(headers)

    def init_headers(self, headers: dict[str, str] | None = None) -> None:  # type: ignore[override]
        # Response would set content-length from a body; a stream has none.
        pairs = {**(headers or {}), "content-type": "text/event-stream; charset=utf-8"}
        self.raw_headers = [(key.encode(), value.encode()) for key, value in pairs.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._watch.guard(self._write(send))
        except ClientGone:
            pass
        finally:
            self._watch.close()
            await self._frames.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for frames in self._frames:
            await send({"type": "http.response.body", "body": frames, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
