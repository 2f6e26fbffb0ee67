"""Counters and latency windows of the engine, as /stats shows them.

Written by the scheduler's thread only; `snapshot` may run on any thread, which sees single numbers
that belong together up to one step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

__all__ = ["EngineStats", "percentiles"]

_WINDOW = 1024  # how many recent values a percentile looks at
_PERCENTILES = (50, 90, 99)


class EngineStats:
    """total_tasks and total_tokens count from the start; times are seconds."""

    def __init__(self) -> None:
        self.n_submitted = 0
        self.n_output_tokens = 0
        self.n_prompt_tokens = 0
        self.n_steps = 0
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "error": 0, "cancelled": 0}
        self._ttft_s: deque[float] = deque(maxlen=_WINDOW)
        self._itl_s: deque[float] = deque(maxlen=_WINDOW)
        self._duration_s: deque[float] = deque(maxlen=_WINDOW)

    def first_token(self, ttft_s: float) -> None:
        self._ttft_s.append(ttft_s)

    def decode_step(self, itl_s: float) -> None:
        """The time between two steps in a row, which is the time between two tokens of each task
        that decoded in both."""
        self._itl_s.append(itl_s)

    def task_finished(self, reason: str, duration_s: float) -> None:
        self.finished[reason] += 1
        self._duration_s.append(duration_s)

    def mean_duration_s(self) -> float:
        """Of recent requests; 1 when there is none."""
        durations = list(self._duration_s)
        return sum(durations) / len(durations) if durations else 1.0

    def snapshot(self) -> dict[str, object]:
        return {
            "total_tasks": self.n_submitted,
            "total_tokens": self.n_output_tokens,
            "prompt_tokens": self.n_prompt_tokens,
            "steps": self.n_steps,
            "finished": dict(self.finished),
            "ttft_s": percentiles(list(self._ttft_s)),
            "itl_s": percentiles(list(self._itl_s)),
        }


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """{"p50": ..., "p90": ..., "p99": ...} by the nearest rank; None without values."""
    ordered = sorted(values)
    return {
        f"p{p}": ordered[math.ceil(p / 100 * len(ordered)) - 1] if ordered else None
        for p in _PERCENTILES
    }
