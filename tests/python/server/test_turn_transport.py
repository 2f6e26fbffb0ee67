"""`TurnTransport`: what is written in one turn of the loop leaves together, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from astrai.server.connection import StepWriter, StreamSocket
from astrai.server.turn_transport import TurnTransport


class Below(asyncio.Transport):
    """The transport below, which remembers what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Any] = []
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("close")
        self._is_closing = True

    def abort(self) -> None:
        self.done.append("abort")
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 5

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def fileno(self) -> int:
        return -1


def after_a_turn(act: Callable[[TurnTransport], object]) -> list[Any]:
    """What the transport below was asked to do, a turn after act."""
    below = Below()

    async def run() -> None:
        act(TurnTransport(below))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    return below.done


def test_writes_of_one_turn_leave_together_in_their_order() -> None:
    def act(transport: TurnTransport) -> None:
        for part in (b"head", b"", bytearray(b" body"), memoryview(b" end")):
            transport.write(part)

    assert after_a_turn(act) == [b"head body end"]


def test_writes_of_two_turns_leave_one_by_one() -> None:
    below = Below()

    async def run() -> None:
        transport = TurnTransport(below)
        for part in (b"one", b"two"):
            transport.write(part)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(run())
    assert below.done == [b"one", b"two"]


@pytest.mark.parametrize(
    ("end", "expected"), [("close", [b"last words", "close"]), ("abort", ["abort"])]
)
def test_what_waits_goes_before_a_close_and_not_before_an_abort(
    end: str, expected: list[Any]
) -> None:
    def act(transport: TurnTransport) -> None:
        transport.write(b"last words")
        getattr(transport, end)()

    assert after_a_turn(act) == expected


def test_nothing_is_written_to_a_transport_that_is_closed_below() -> None:
    below = Below()

    async def run() -> None:
        transport = TurnTransport(below)
        transport.write(b"late")
        below.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert below.done == ["close"]


def test_a_stream_is_not_clear_while_something_waits() -> None:
    """Else its next frames would go around those that wait."""
    below = Below()
    below.get_write_buffer_size = lambda: 0  # type: ignore[method-assign]

    async def run() -> list[bool]:
        transport = TurnTransport(below)
        stream = StreamSocket(transport, StepWriter())
        transport.write(b"first frames")
        waiting = stream.is_clear()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [waiting, stream.is_clear()]

    assert asyncio.run(run()) == [False, True]


def test_the_buffer_is_what_waits_and_what_the_transport_below_holds() -> None:
    below = Below()

    async def run() -> int:
        transport = TurnTransport(below)
        transport.write(b"four")
        return transport.get_write_buffer_size()

    assert asyncio.run(run()) == 9
