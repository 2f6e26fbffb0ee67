"""Events of a step to the coroutines that wait for them: one wake-up of the loop per step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from astrai.engine.client import EngineClient
from astrai.engine.errors import DeadlineError
from astrai.engine.request import GenerationRequest, TokenEvent, merge_events

__all__ = ["AsyncEventRouter"]


class _Mailbox:
    """Events of one request that its coroutine has not taken yet."""

    __slots__ = ("events", "is_expired", "waiter")

    def __init__(self) -> None:
        self.events: deque[TokenEvent] = deque()
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

    async def stream(
        self, request: GenerationRequest, deadline_at: float | None = None
    ) -> AsyncGenerator[TokenEvent, None]:
        """Submit at the first step of the iteration and yield events to the one that ends it.

        Events that pile up while the consumer is busy come as one. Closing the generator before
        the last event cancels the request, and so does the deadline, a time of the loop's clock.
        Raises what `EngineClient.submit` raises, and DeadlineError.
        """
        # submit and the registration run without giving the loop away, and _dispatch runs on the
        # loop: no event can arrive between the two.
        request_id = self._client.submit(request, self._on_events)
        mailbox = self._mailboxes[request_id] = _Mailbox()
        timer = None
        if deadline_at is not None:
            timer = self._loop.call_at(deadline_at, mailbox.expire)
        is_finished = False
        try:
            while not is_finished:
                if mailbox.is_expired:
                    raise DeadlineError("the request did not end before its deadline")
                if not mailbox.events:
                    mailbox.waiter = self._loop.create_future()
                    await mailbox.waiter
                    continue
                event = merge_events(list(mailbox.events))
                mailbox.events.clear()
                is_finished = event.finish_reason is not None
                yield event
        finally:
            if timer is not None:
                timer.cancel()
            del self._mailboxes[request_id]
            if not is_finished:
                self._client.cancel(request_id)

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
