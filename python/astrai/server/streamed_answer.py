"""The frames of one streamed answer, from its events, by either of two ways to the client."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from astrai.engine import TokenEvent
from astrai.server.connection import StreamSocket
from astrai.server.engine_link import EventBatches
from astrai.server.errors import ApiError
from astrai.server.sse import TextFrame

if TYPE_CHECKING:
    from astrai.server.protocol import Choice, ResponseBuilder, ResponseContext

log = logging.getLogger("astrai.server")


class StreamedAnswer:
    """`frames` is the whole stream for the application's layers, which wait for slow clients.

    While it waits for news and all before is sent, `take` sends an event straight to the socket.
    """

    def __init__(
        self,
        builder: ResponseBuilder[Any],
        ctx: ResponseContext,
        choices: list[Choice],
        socket: StreamSocket | None,
    ) -> None:
        self._builder = builder
        self._ctx = ctx
        self._choices = choices
        self._socket = socket
        self._text_frames: list[TextFrame | None] = [None] * len(choices)
        self._is_begun = False

    def take(self, idx: int, event: TokenEvent) -> bool:
        """Send an event that is not the last one of its choice. False: it has to go by `frames`.

        For `AsyncEventRouter.stream_all`, whose consumer waits meanwhile.
        """
        socket = self._socket
        if socket is None or not self._is_begun or not socket.is_clear():
            return False
        frames = self._format(idx, event)
        if frames:
            socket.send(frames)
        return True

    async def frames(
        self, first: list[tuple[int, TokenEvent]], batches: EventBatches
    ) -> AsyncGenerator[bytes, None]:
        """Everything that `take` does not send. first: the first of the batches."""
        builder, ctx, choices = self._builder, self._ctx, self._choices
        try:
            for idx, event in first:
                choices[idx].n_prompt, choices[idx].n_cached = event.n_prompt, event.n_cached
            yield builder.format_stream_start(ctx, choices) + self._format_batch(first)
            self._is_begun = True
            async for batch in batches:
                if frames := self._format_batch(batch):
                    yield frames
            yield builder.format_stream_end(ctx, choices)
        except ApiError as error:
            yield builder.format_stream_error(error)
        except Exception:
            log.exception("stream %s broke", ctx.response_id)
            yield builder.format_stream_error(ApiError(500, "internal server error"))
        finally:
            await batches.aclose()

    def _format_batch(self, batch: list[tuple[int, TokenEvent]]) -> bytes:
        return b"".join([self._format(idx, event) for idx, event in batch])

    def _format(self, idx: int, event: TokenEvent) -> bytes:
        choice, text_frame = self._choices[idx], self._text_frames[idx]
        if (
            text_frame is not None
            and event.finish_reason is None
            and choice.answer.passes(event.text)
        ):
            choice.n_output = event.n_output
            return text_frame.fill(event.text)
        raise_fault(event)
        choice.add(event)
        frames = self._builder.format_chunk(self._ctx, choice, event)
        self._text_frames[idx] = self._builder.text_frame(self._ctx, choice)
        return frames


def raise_fault(event: TokenEvent) -> None:
    """Turn an end that is not the model's own into an error."""
    if event.finish_reason == "error":
        raise ApiError(500, event.error or "the generation failed", code="generation_failed")
    if event.finish_reason == "cancelled":
        raise ApiError(503, "the request was cancelled by the server", code="cancelled")
