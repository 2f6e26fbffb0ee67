"""Events of a step to the coroutines that wait for them: one wake-up of the loop per step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from astrai.engine.client import EngineClient
from astrai.engine.errors import DeadlineError
from astrai.engine.request import GenerationRequest, TokenEvent, merge_events

__all__ = ["AsyncEventRouter", "TakeEvent"]

# Offered the index of a request and its event; True when nothing is left to do for it.
TakeEvent = Callable[[int, TokenEvent], bool]


class _Mailbox:
    """Events of the requests of one stream that its coroutine has not taken yet.

    indices: of the requests that have not ended, by their ids. waiter: what its coroutine awaits,
    if it does. fault: what `take` raised, for the coroutine to raise.
    """

    __slots__ = ("events", "fault", "indices", "is_expired", "take", "waiter")

    def __init__(self, take: TakeEvent | None) -> None:
        self.events: list[TokenEvent] = []
        self.indices: dict[str, int] = {}
        self.take = take
        self.waiter: asyncio.Future[None] | None = None
        self.is_expired = False
        self.fault: Exception | None = None

    def put(self, event: TokenEvent) -> None:
        waiter = self.waiter
        if (
            self.take is not None
            and event.finish_reason is None
            and waiter is not None
            and not waiter.done()
        ):
            try:
                if self.take(self.indices[event.request_id], event):
                    return
            except Exception as error:  # of this stream alone
                self.fault = error
        self.events.append(event)
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def expire(self) -> None:
        self.is_expired = True
        self.wake()


class AsyncEventRouter:
    """Streams of one event loop. All methods but the sink run on that loop."""

    def __init__(
        self,
        client: EngineClient,
        loop: asyncio.AbstractEventLoop | None = None,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """after_step: called on the loop when the events of a step are with their streams."""
        self._client = client
        self._after_step = after_step
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._mailboxes: dict[str, _Mailbox] = {}
        self._arrived: deque[list[TokenEvent]] = deque()  # steps; the engine's thread appends
        self._sink = self._on_events  # one object: the engine tells sinks apart in every step

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """The events of one request, as `stream_all` gives them."""
        async with aclosing(self.stream_all([request])) as batches:
            async for ((_, event),) in batches:
                yield event

    async def stream_all(
        self,
        requests: Sequence[GenerationRequest],
        deadline_at: float | None = None,
        take: TakeEvent | None = None,
    ) -> AsyncGenerator[list[tuple[int, TokenEvent]], None]:
        """Submit all requests at the first step of the iteration and yield what is new, with the
        request's index, until all have ended.

        What piles up while the consumer is busy comes as one batch, one event for each request.
        Closing the generator before the last event cancels what has not ended, and so does the
        deadline, a time of the loop's clock. take: offered, while the consumer waits for news,
        each event but the last one of a request, at once; what it takes is not yielded, what it
        raises is raised here. Raises what `EngineClient.submit` raises, and DeadlineError; nothing
        is left running then.
        """
        mailbox = _Mailbox(take)
        timer = None
        if deadline_at is not None:
            timer = self._loop.call_at(deadline_at, mailbox.expire)
        try:
            # submit and the registration run without giving the loop away, and _dispatch runs on
            # the loop: no event can arrive between the two.
            for idx, request in enumerate(requests):
                request_id = self._client.submit(request, self._sink)
                self._mailboxes[request_id] = mailbox
                mailbox.indices[request_id] = idx
            while mailbox.indices:
                if mailbox.is_expired:
                    raise DeadlineError("the request did not end before its deadline")
                if mailbox.fault is not None:
                    raise mailbox.fault
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
        batch = []
        for event in _one_for_each(events) if len(events) > 1 else events:
            batch.append((mailbox.indices[event.request_id], event))
            if event.finish_reason is not None:
                del self._mailboxes[event.request_id], mailbox.indices[event.request_id]
        return batch

    def _on_events(self, events: list[TokenEvent]) -> None:
        """The sink: called on the engine's thread. Raises RuntimeError once the loop is closed,
        upon which the scheduler cancels the requests."""
        self._arrived.append(events)
        self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        """Hand on what has arrived. Steps that came while the loop was busy are told as one, so
        that it never falls further behind."""
        if not self._arrived:
            return
        events = self._arrived.popleft()
        if self._arrived:
            events = list(events)
            while self._arrived:
                events += self._arrived.popleft()
            events = _one_for_each(events)
        for event in events:
            mailbox = self._mailboxes.get(event.request_id)
            if mailbox is None:
                continue  # its generator was closed; the cancel is on its way
            mailbox.put(event)
        if self._after_step is not None:
            self._after_step()


def _one_for_each(events: list[TokenEvent]) -> list[TokenEvent]:
    """One event for each request, in the order of their first ones."""
    by_request: dict[str, list[TokenEvent]] = {}
    for event in events:
        by_request.setdefault(event.request_id, []).append(event)
    return [merge_events(group) for group in by_request.values()]
