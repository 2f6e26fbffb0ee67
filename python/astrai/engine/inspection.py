"""One look at the engine: its requests, pages, prefix tree and last steps.

Taken on the scheduler's thread between two steps, in bounded time: every list has a limit, and
the counts beside it say what was left out. The result is frozen and may go to any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from astrai.engine.engine_task import EngineTask
from astrai.engine.scheduling_state import HostPool, SchedulingState
from astrai.engine.step_log import StepLog, StepRecord

if TYPE_CHECKING:
    from astrai._C import _RadixEdge

__all__ = ["Inspection", "PageCounts", "RequestView", "inspect_engine"]

_MAX_REQUESTS = 64
_MAX_EDGES = 128
_MAX_EDGE_IDS = 48  # token ids told of each edge


class RequestView(NamedTuple):
    """An open request. n_written: tokens whose KV is there; it prefills until that is n_prefill.

    n_cached: prompt tokens found in the prefix cache; 0 until it is admitted."""

    request_id: str
    is_running: bool
    n_prompt: int
    n_cached: int
    n_written: int
    n_prefill: int
    n_output: int
    max_tokens: int
    n_preemptions: int
    age_s: float


@dataclass(frozen=True, slots=True)
class PageCounts:
    """free + cached + held = total; page_size in tokens."""

    total: int
    free: int
    cached: int
    held: int
    page_size: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """taken_at: seconds of `time.perf_counter`, as in `steps`."""

    taken_at: float
    n_running: int
    n_waiting: int
    requests: list[RequestView]  # running ones, then waiting ones
    pages: PageCounts
    n_edges: int  # of the prefix tree
    edges: list[_RadixEdge]  # parents first
    steps: list[StepRecord]  # oldest first


def inspect_engine(
    state: SchedulingState[EngineTask], pool: HostPool, log: StepLog, now: float
) -> Inspection:
    """Look at everything. Called by the scheduler's thread, which owns all of it."""
    open_tasks = chain(state.running, state.waiting)
    n_free, n_cached = pool.n_free_pages, pool.n_cached_pages
    return Inspection(
        taken_at=now,
        n_running=len(state.running),
        n_waiting=len(state.waiting),
        requests=[_view(task, now) for task in islice(open_tasks, _MAX_REQUESTS)],
        pages=PageCounts(
            pool.n_pages, n_free, n_cached, pool.n_pages - n_free - n_cached, pool.page_size
        ),
        n_edges=pool.n_edges,
        edges=pool.edges(_MAX_EDGES, _MAX_EDGE_IDS),
        steps=log.copy(),
    )


def _view(task: EngineTask, now: float) -> RequestView:
    is_running = task.req_idx >= 0
    return RequestView(
        task.task_id,
        is_running,
        task.n_prompt,
        task.n_cached,
        task.n_written if is_running else 0,
        task.n_prefill,
        task.n_output,
        task.max_tokens,
        task.n_preemptions,
        now - task.submitted_at,
    )
