"""What the last steps computed and how long they took, for the inspector.

Written by the scheduler's thread only, which also copies it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from astrai.engine.engine_task import EngineTask
from astrai.engine.plan import StepPlan

__all__ = ["StepLog", "StepRecord"]

_N_KEPT = 1024


class StepRecord(NamedTuple):
    """One step. Times are seconds of `time.perf_counter`."""

    idx: int  # counts from 1
    ended_at: float
    duration_s: float  # from its plan to its results; steps launched ahead overlap
    n_prefill_tokens: int
    n_decode: int  # requests that computed one generated token
    n_sampled: int  # tokens drawn
    itl_s: float | None  # time since the step before, where requests decoded in both
    ttft_s: tuple[float, ...]  # of the requests whose first token this was


class StepLog:
    """The last steps, oldest first."""

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=_N_KEPT)

    def add(
        self,
        plan: StepPlan[EngineTask],
        idx: int,
        began_at: float,
        ended_at: float,
        itl_s: float | None,
        ttft_s: Sequence[float],
    ) -> None:
        n_tokens = sum([sum(group.q_lens) for group in plan.groups])
        n_decode = sum([group.n_decode for group in plan.groups])
        self._records.append(
            StepRecord(
                idx,
                ended_at,
                ended_at - began_at,
                n_tokens - n_decode,
                n_decode,
                sum([group.n_sampled for group in plan.groups]),
                itl_s,
                tuple(ttft_s),
            )
        )

    def copy(self) -> list[StepRecord]:
        return list(self._records)
