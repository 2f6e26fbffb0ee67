"""Distributions of what the engine measures: buckets for Prometheus, a window for percentiles.

Constant memory and a bisection per value. Written by one thread; a snapshot taken by another sees
numbers that belong together up to one observation.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "HOST_SECONDS",
    "SECONDS",
    "TOKENS",
    "Histogram",
    "HistogramSnapshot",
    "Latency",
    "percentiles",
]

# Upper bounds in the 1-2-5 series: a ratio of two adjacent bounds never exceeds 2.5.
SECONDS = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5))
HOST_SECONDS = tuple(digit * 10.0**power for power in range(-5, 0) for digit in (1, 2, 5))
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

_WINDOW = 1024  # how many recent values a percentile looks at
_PERCENTILES = (50, 90, 99)


class HistogramSnapshot(NamedTuple):
    """counts: [len(bounds) + 1] values in (bounds[i - 1], bounds[i]], the last one above all."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float


class Histogram:
    """Counts of values under fixed upper bounds."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` equal values."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, self._counts.copy(), self._total)


class Latency:
    """Seconds: a histogram since the start and the last 1024 observations."""

    __slots__ = ("_recent", "histogram")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.histogram = Histogram(bounds)
        self._recent: deque[float] = deque(maxlen=_WINDOW)

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add `count` equal values; the window takes them as one."""
        self.histogram.observe(seconds, count)
        self._recent.append(seconds)

    def percentiles(self) -> dict[str, float | None]:
        return percentiles(self._recent.copy())

    def mean(self, default: float) -> float:
        """Of the window; default when it is empty."""
        recent = self._recent.copy()
        return sum(recent) / len(recent) if recent else default


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """{"p50": ..., "p90": ..., ...} by the nearest rank; None without values."""
    ordered = sorted(values)
    return {
        f"p{p}": ordered[math.ceil(p / 100 * len(ordered)) - 1] if ordered else None
        for p in _PERCENTILES
    }
