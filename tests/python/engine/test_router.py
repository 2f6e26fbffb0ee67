"""`AsyncEventRouter` over a client that does nothing: what is yielded, what `take` is offered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from astrai.engine import AsyncEventRouter, GenerationRequest, TakeEvent, TokenEvent

Batches = list[list[tuple[int, str]]]


class QuietClient:
    """Takes requests; the test sends their events."""

    def __init__(self) -> None:
        self.sinks: list[Callable[[list[TokenEvent]], None]] = []
        self.cancelled: list[str] = []

    def submit(self, request: GenerationRequest, on_event: Callable[..., None]) -> str:
        self.sinks.append(on_event)
        return str(len(self.sinks) - 1)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def step(self, *texts: str, reason: Any = None) -> None:
        """One step: a text for each request, by its number."""
        self.sinks[0](
            [
                TokenEvent(str(i), text, [i], None, reason, None, None, 1, 0, 1)
                for i, text in enumerate(texts)
            ]
        )


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def read(
    router: AsyncEventRouter, n_requests: int, batches: Batches, take: TakeEvent | None = None
) -> None:
    requests = [GenerationRequest([1])] * n_requests
    async for batch in router.stream_all(requests, take=take):
        batches.append([(idx, event.text) for idx, event in batch])


def test_an_event_that_is_taken_is_not_yielded_and_the_last_one_is_never_offered() -> None:
    taken: list[tuple[int, str]] = []
    n_steps = 0

    def take(idx: int, event: TokenEvent) -> bool:
        taken.append((idx, event.text))
        return event.text != "refused"

    def after_step() -> None:
        nonlocal n_steps
        n_steps += 1

    async def main() -> Batches:
        client, batches = QuietClient(), Batches()
        router = AsyncEventRouter(client, after_step=after_step)  # type: ignore[arg-type]
        reading = asyncio.create_task(read(router, 2, batches, take))
        await settle()
        for texts in (("a", "b"), ("c", "refused")):
            client.step(*texts)
            await settle()
        client.step("end", "end", reason="stop")
        await reading
        assert client.cancelled == []
        return batches

    assert asyncio.run(main()) == [[(1, "refused")], [(0, "end"), (1, "end")]]
    assert taken == [(0, "a"), (1, "b"), (0, "c"), (1, "refused")]
    assert n_steps == 3


def test_nothing_is_offered_while_older_events_wait() -> None:
    taken: list[str] = []

    def take(_: int, event: TokenEvent) -> bool:
        taken.append(event.text)
        return False

    async def main() -> Batches:
        client, batches = QuietClient(), Batches()
        router = AsyncEventRouter(client)  # type: ignore[arg-type]
        stream = router.stream_all([GenerationRequest([1])], take=take)
        reading = asyncio.ensure_future(anext(stream))
        await settle()
        client.step("a")
        batches.append([(idx, event.text) for idx, event in await reading])
        for text in "bc":  # the consumer is busy
            client.step(text)
            await settle()
        batches.append([(idx, event.text) for idx, event in await anext(stream)])
        await stream.aclose()
        assert client.cancelled == ["0"]
        return batches

    assert asyncio.run(main()) == [[(0, "a")], [(0, "bc")]]
    assert taken == ["a"]


def test_steps_that_came_while_the_loop_was_busy_are_told_as_one() -> None:
    taken: list[tuple[int, str]] = []

    def take(idx: int, event: TokenEvent) -> bool:
        taken.append((idx, event.text))
        return True

    async def main() -> Batches:
        client, batches = QuietClient(), Batches()
        router = AsyncEventRouter(client)  # type: ignore[arg-type]
        reading = asyncio.create_task(read(router, 2, batches, take))
        await settle()
        client.step("a", "x")
        client.step("b", "y")
        client.step("c")
        await settle()
        client.step("d", "z")
        client.step("e", "end", reason="length")
        await reading
        return batches

    assert asyncio.run(main()) == [[(0, "de"), (1, "zend")]]
    assert taken == [(0, "abc"), (1, "xy")]


def test_what_take_raises_ends_its_stream_alone() -> None:
    def broken(idx: int, event: TokenEvent) -> bool:
        raise ValueError("no such shape")

    async def main() -> None:
        client = QuietClient()
        router = AsyncEventRouter(client)  # type: ignore[arg-type]
        sound: Batches = []
        lost = asyncio.create_task(read(router, 1, [], broken))
        await settle()
        kept = asyncio.create_task(read(router, 1, sound))
        await settle()
        client.step("a", "b")
        with pytest.raises(ValueError, match="no such shape"):
            await lost
        assert client.cancelled == ["0"]
        client.step("c", "d", reason="stop")
        await kept
        assert sound == [[(0, "b")], [(0, "d")]]

    asyncio.run(main())
