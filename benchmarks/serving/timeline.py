"""When the events of a request came to its client, and the figures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """Seconds from the client's start. times: of the events of one request, with their tokens."""

    submitted_at: float
    times: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_chars: int = 0
    is_ended: bool = False


def output_rate(timelines: Sequence[Timeline]) -> float:
    """Output tokens a second from the first submit to the last event."""
    began_at = min(timeline.submitted_at for timeline in timelines)
    ended_at = max(timeline.times[-1] for timeline in timelines)
    return sum(timeline.n_tokens for timeline in timelines) / (ended_at - began_at)


def ttft_ms(timelines: Sequence[Timeline]) -> list[float]:
    return [1e3 * (timeline.times[0] - timeline.submitted_at) for timeline in timelines]


def itl_ms(timelines: Sequence[Timeline]) -> list[float]:
    """Milliseconds between the events of a request, all requests together."""
    return [
        1e3 * (later - earlier)
        for timeline in timelines
        for earlier, later in zip(timeline.times, timeline.times[1:], strict=False)
    ]


def percentile(values: Sequence[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))]
