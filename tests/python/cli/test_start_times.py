"""`StartTimes`: stages add up to the whole, in the order they came."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from astrai.cli.start_times import StartTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time that `StartTimes` sees."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    yield now


def test_stages_and_their_parts_add_up_to_the_total(clock: list[float]) -> None:
    times = StartTimes()
    clock[0] += 4
    times.end("imports")
    clock[0] += 3
    times.end("weights", {"tokenizer": 1.0})
    clock[0] += 0.5
    times.end("server")
    assert times.stages == {"imports": 4.0, "tokenizer": 1.0, "weights": 2.0, "server": 0.5}
    assert sum(times.stages.values()) == times.total_s == 7.5


def test_the_text_names_stages_in_their_order_but_short_ones(clock: list[float]) -> None:
    times = StartTimes()
    clock[0] += 0.03
    times.end("imports")
    clock[0] += 1.25
    times.end("weights", {"tokenizer": 0.25})
    assert times.text() == "tokenizer 0.2 s, weights 1.0 s"


def test_what_comes_after_the_last_stage_is_not_counted(clock: list[float]) -> None:
    times = StartTimes()
    clock[0] += 2
    times.end("imports")
    clock[0] += 50
    assert times.total_s == 2.0
