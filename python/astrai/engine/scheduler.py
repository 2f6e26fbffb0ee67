"""`InferenceScheduler`: the daemon thread around the scheduling state.

The thread owns the pool, the sampler, the text streams and the model; other threads reach it by
the `Inbox`, which is read between two steps. One step:

    1. Cleanup   record the written pages of finished tasks, release their rows
    2. Refill    admit from the waiting queue
    3. Prefill   chunks of prompts      } planned together, computed as one ragged
    4. Decode    one token each         } batch per attention selection
    then sampling, and text and events by the `Publisher`.

Where the executor runs ahead, a step is planned and launched while the one before it is computed,
and the tokens of that one are read afterwards: text and events run beside the device. A request
that has ended, or was cancelled, in the meantime has a row in one step too many, which is dropped.
Their events go out behind the launch of the step that was planned meanwhile: their readers then use
the interpreter while this thread waits for the device, and not while it plans and launches. With a
target for the time between tokens they go out at once, for launches differ in length.

Faults: a task whose logits are not finite, or whose sink raises, ends alone. A forward that fails
under an explicitly selected backend ends the tasks of that selection. Anything else, and a kernel
that fails under whichever backend, ends all open tasks with an error and the thread with them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from astrai.engine.engine_task import EngineTask
from astrai.engine.errors import DeviceLostError, EngineStoppingError
from astrai.engine.histogram import HistogramSnapshot
from astrai.engine.inbox import DEAD, Inbox, Notes
from astrai.engine.inspection import Inspection, inspect_engine
from astrai.engine.itl_pace import ItlPace
from astrai.engine.plan import StepGroup, StepPlan
from astrai.engine.prefill_chunk import PrefillChunk
from astrai.engine.protocols import Executor, LaunchedStep, TextStreamsLike
from astrai.engine.publisher import Publisher
from astrai.engine.request import FinishReason
from astrai.engine.scheduling_state import HostPool, SchedulingState
from astrai.engine.stats import EngineStats
from astrai.engine.step_log import StepLog
from astrai.engine.task import TaskStatus
from astrai.sampling import Sampler

__all__ = ["InferenceScheduler"]

_log = logging.getLogger(__name__)

Launched = tuple[StepGroup[EngineTask], LaunchedStep]


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that is being computed. groups: those of the plan that could be launched."""

    plan: StepPlan[EngineTask]
    began_at: float
    groups: list[Launched]


class InferenceScheduler:
    """Continuous batching on one thread. Public methods may be called from any thread."""

    def __init__(
        self,
        host_pool: HostPool,
        executor: Executor,
        sampler: Sampler,
        streams: TextStreamsLike,
        *,
        max_open: int,
        prefill_chunk: PrefillChunk | int | None = 512,
        itl_target_s: float | None = None,
        rope_switch_len: int | None = None,
        is_batch_invariant: bool = False,
        strip_leading_space: bool = False,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """max_open: requests running and waiting together. itl_target_s: see `ItlPace`; None lets
        prompts take prefill_chunk of every step. rope_switch_len, is_batch_invariant: see
        `SchedulingState`. strip_leading_space: as the tokenizer says. after_step: called on the
        thread after every step, for tests that check invariants; what it raises is a fault of the
        loop."""
        self._pool = host_pool
        self._executor = executor
        self._after_step = after_step
        self._pace: ItlPace | None = None
        if itl_target_s is not None:
            self._pace = ItlPace(itl_target_s, executor.padded_sizes, executor.query_tile)
        self._state: SchedulingState[EngineTask] = SchedulingState(
            host_pool, prefill_chunk, self._pace, rope_switch_len, is_batch_invariant
        )
        self._stats = EngineStats()
        self._log = StepLog()
        self._inbox = Inbox(max_open, self._stats)
        self._publisher = Publisher(
            self._state, sampler, streams, self._inbox, self._stats, strip_leading_space
        )
        self._pages = (host_pool.n_free_pages, host_pool.n_cached_pages)
        self._in_flight: InFlight | None = None
        self._unread: deque[LaunchedStep] = deque()  # launched, and no result asked for yet
        self._last_step_at: float | None = None  # end of the last step, None after a pause
        self._computing_s = 0.0  # of this step: what this thread waited for, or computed itself
        self._thread = threading.Thread(target=self._run, name="astrai-scheduler", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def submit(self, task: EngineTask) -> None:
        """Hand a task over. Raises EngineDeadError, EngineStoppingError or QueueFullError."""
        self._inbox.submit(task)

    def cancel(self, task_id: str) -> None:
        """End a task within a step; unknown and finished ids are ignored."""
        self._inbox.cancel(task_id)

    def is_healthy(self) -> bool:
        return self._inbox.is_usable and self._thread.is_alive()

    def stats(self) -> dict[str, object]:
        n_open = self._inbox.n_open
        n_active = min(len(self._state.running), n_open)
        n_free, n_cached = self._pages
        return {
            **self._stats.snapshot(),
            "active_tasks": n_active,
            "waiting_queue": n_open - n_active,
            "preemptions": self._state.n_preemptions,
            "prefix_query_tokens": self._state.n_prefix_query_tokens,
            "prefix_hit_tokens": self._state.n_prefix_hit_tokens,
            "prefix_miss_reasons": dict(self._state.miss_reasons.copy()),
            "kv_pages": {
                "total": self._pool.n_pages,
                "free": n_free,
                "cached": n_cached,
                "held": self._pool.n_pages - n_free - n_cached,
            },
        }

    def histograms(self) -> dict[str, HistogramSnapshot]:
        return self._stats.histograms()

    def inspect(self) -> Future[Inspection]:
        """Ask for a look between two steps. Raises EngineDeadError or EngineStoppingError, as the
        future does when the thread ends first."""
        return self._inbox.inspect()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take no new task and wait for the open ones. True when all have ended."""
        return self._inbox.drain(timeout_s)

    def stop(self, timeout_s: float = 30.0) -> None:
        """End all open tasks as cancelled and the thread after its current step. Idempotent.

        Raises RuntimeError when a step does not return in time; the pool is then still in use.
        """
        self._inbox.stop()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise RuntimeError(
                f"InferenceScheduler.stop: the current step did not return in {timeout_s} s"
            )

    # The thread

    def _run(self) -> None:
        error = "the engine was shut down"
        reason: FinishReason = "cancelled"
        try:
            with torch.inference_mode():
                while (notes := self._inbox.take(is_idle=not self._has_work)) is not None:
                    woken_at = time.perf_counter()
                    self._read(notes)
                    if self._has_work:
                        self._step(woken_at)
        except BaseException as fault:  # whatever it is, nobody may be left waiting
            _log.exception("the scheduler met a fault and stops")
            self._inbox.fail(fault)
            error, reason = DEAD, "error"
        self._abandon()
        self._end_all(reason, error)

    @property
    def _has_work(self) -> bool:
        return self._state.has_work or self._in_flight is not None

    def _abandon(self) -> None:
        """Wait until nothing is computed any more: the memory that it uses may go right after."""
        while self._unread:
            try:
                self._unread.popleft().result()
            except Exception:
                _log.warning("a step in flight failed", exc_info=True)

    def _read(self, notes: Notes) -> None:
        """Take in what other threads left."""
        if notes.has_slept:
            self._last_step_at = None
        for task in notes.submitted:
            self._publisher.accept(task)
        for task in notes.cancelled:
            if task.status is not TaskStatus.FINISHED:  # the same id may be cancelled twice
                self._publisher.end(task, "cancelled")
        if self._in_flight is None:
            self._publisher.deliver()
        if notes.inspections:
            self._show(notes.inspections)

    def _show(self, asked: list[Future[Inspection]]) -> None:
        """One look for all that asked. A fault in it is theirs, not the loop's."""
        waiting = [future for future in asked if future.set_running_or_notify_cancel()]
        try:
            now = time.perf_counter()
            inspection = inspect_engine(self._state, self._pool, self._log, now)
        except Exception as error:
            for future in waiting:
                future.set_exception(error)
            return
        for future in waiting:
            future.set_result(inspection)

    def _step(self, woken_at: float) -> None:
        """woken_at: when the thread turned to it, by reading what others had left."""
        began_at = time.perf_counter()
        self._computing_s = 0.0
        must_collect = self._in_flight is not None and not self._state.can_plan_ahead()
        if must_collect or self._pace is not None:
            self._publisher.deliver()
        if must_collect:
            self._collect()
        plan: StepPlan[EngineTask] = self._state.plan()
        for task in plan.admitted:
            self._stats.admitted(began_at - task.submitted_at)
        for task, message in plan.refused:
            self._publisher.end(task, "error", error=message)
        for task in plan.out_of_room:
            self._publisher.end(task, "length")
        launched = self._launch(plan)
        self._publisher.deliver()
        self._collect()
        if launched:
            self._in_flight = InFlight(plan, began_at, launched)
        if not self._executor.runs_ahead:
            self._collect()
        if self._in_flight is None:
            self._publisher.deliver()
        if launched:
            self._stats.host_step(time.perf_counter() - woken_at - self._computing_s)
        if not self._state.running:
            self._state.cleanup()  # pages must be back before the thread goes to sleep
        self._pages = (self._pool.n_free_pages, self._pool.n_cached_pages)
        if self._after_step is not None:
            self._after_step()

    def _launch(self, plan: StepPlan[EngineTask]) -> list[Launched]:
        launched: list[Launched] = []
        for group in plan.groups:
            slots = [task.sampler_slot for task in group.tasks[: group.n_sampled]]
            began_at = time.perf_counter()
            try:
                launched.append((group, self._executor.launch(group, slots)))
                self._unread.append(launched[-1][1])
            except DeviceLostError:
                raise
            except Exception as error:
                if group.selection is None or group.selection.backend is None:
                    raise
                # The client chose a backend that cannot run this; the default one is not in doubt.
                _log.warning("a forward under %s failed: %s", group.selection, error)
                for task in group.tasks:
                    self._publisher.end(task, "error", error=str(error), keep_pages=False)
            if not self._executor.runs_ahead:
                self._computing_s += time.perf_counter() - began_at
        return launched

    def _collect(self) -> None:
        """Wait for the step in flight, if there is one, and tell what it has drawn."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return
        first_tokens: list[EngineTask] = []
        for group, launched in step.groups:
            self._unread.popleft()
            began_at = time.perf_counter()
            launched.wait()
            self._computing_s += time.perf_counter() - began_at
            first_tokens += self._publisher.publish(group, launched.result())
        self._count_step(step, first_tokens)

    def _count_step(self, step: InFlight, first_tokens: list[EngineTask]) -> None:
        """first_tokens: tasks whose first token the step gave."""
        now = time.perf_counter()
        self._stats.n_steps += 1
        ttft_s = [now - task.submitted_at for task in first_tokens]
        for seconds in ttft_s:
            self._stats.first_token(seconds)
        n_sampled = sum(group.n_sampled for group, _ in step.groups)
        itl_s = None
        if self._pace is not None and self._last_step_at is not None:
            self._pace.observe([group for group, _ in step.groups], now - self._last_step_at)
        if n_sampled > len(first_tokens) and self._last_step_at is not None:
            itl_s = now - self._last_step_at
            self._stats.decode_step(itl_s, n_sampled - len(first_tokens))
        self._log.add(step.plan, self._stats.n_steps, step.began_at, now, itl_s, ttft_s)
        self._last_step_at = now

    def _end_all(self, reason: FinishReason, error: str) -> None:
        tasks, asked = self._inbox.close_all()
        for future in asked:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineStoppingError(error))
        self._state.waiting.clear()
        self._state.running.clear()
        self._publisher.end_all(tasks, reason, error)
        self._publisher.deliver()
