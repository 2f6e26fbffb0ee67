"""Events of a step to the coroutines that wait for them: one wake-up of the loop per step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from astrai.engine.client import EngineClient
from astrai.engine.errors import DeadlineError
from astrai.engine.request import GenerationRequest, TokenEvent, merge_events

__all__ = ["AsyncEventRouter"]


class _Mailbox:
    """Events of the requests of one stream that its coroutine has not taken yet.

    indices: of the requests that have not ended, by their ids.
    """

    __slots__ = ("events", "indices", "is_expired", "waiter")

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.indices: dict[str, int] = {}
        self.waiter: asyncio.Future[None] | None = None
        self.is_expired = False

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def expire(self) -> None:
        self.is_expired = True
        self.wake()


class AsyncEventRouter:
    """Streams of one event loop. All methods but the sink run on that loop."""

    def __init__(self, client: EngineClient, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._client = client
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._mailboxes: dict[str, _Mailbox] = {}

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """The events of one request, as `stream_all` gives them."""
        async with aclosing(self.stream_all([request])) as batches:
            async for ((_, event),) in batches:
                yield event

    async def stream_all(
        self, requests: Sequence[GenerationRequest], deadline_at: float | None = None
    ) -> AsyncGenerator[list[tuple[int, TokenEvent]], None]:
        """Submit all requests at the first step of the iteration and yield what is new, with the
        request's index, until all have ended.

        What piles up while the consumer is busy comes as one batch, one event for each request.
        Closing the generator before the last event cancels what has not ended, and so does the
        deadline, a time of the loop's clock. Raises what `EngineClient.submit` raises, and
        DeadlineError; nothing is left running then.
        """
        mailbox = _Mailbox()
        timer = None
        if deadline_at is not None:
            timer = self._loop.call_at(deadline_at, mailbox.expire)
        try:
            # submit and the registration run without giving the loop away, and _dispatch runs on
            # the loop: no event can arrive between the two.
            for idx, request in enumerate(requests):
                request_id = self._client.submit(request, self._on_events)
                self._mailboxes[request_id] = mailbox
                mailbox.indices[request_id] = idx
            while mailbox.indices:
                if mailbox.is_expired:
                    raise DeadlineError("the request did not end before its deadline")
                if mailbox.events:
                    events, mailbox.events = mailbox.events, []
                    yield self._batch(mailbox, events)
                else:
                    mailbox.waiter = self._loop.create_future()
                    await mailbox.waiter
        finally:
            if timer is not None:
                timer.cancel()
            for request_id in mailbox.indices:
                del self._mailboxes[request_id]
                self._client.cancel(request_id)

    def _batch(self, mailbox: _Mailbox, events: list[TokenEvent]) -> list[tuple[int, TokenEvent]]:
        """One event for each request, in the order of their first ones; takes note of ends."""
        if len(events) > 1:
            by_request: dict[str, list[TokenEvent]] = {}
            for event in events:
                by_request.setdefault(event.request_id, []).append(event)
            events = [merge_events(group) for group in by_request.values()]
        batch = []
        for event in events:
            batch.append((mailbox.indices[event.request_id], event))
            if event.finish_reason is not None:
                del self._mailboxes[event.request_id], mailbox.indices[event.request_id]
        return batch

    def _on_events(self, events: list[TokenEvent]) -> None:
        """The sink: called on the engine's thread. Raises RuntimeError once the loop is closed,
        upon which the scheduler cancels the requests."""
        self._loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[TokenEvent]) -> None:
        for event in events:
            mailbox = self._mailboxes.get(event.request_id)
            if mailbox is None:
                continue  # its generator was closed; the cancel is on its way
            mailbox.events.append(event)
            mailbox.wake()
