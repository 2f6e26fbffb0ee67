"""`InferenceScheduler`: the daemon thread around the scheduling state.

The thread owns the pool, the sampler, the text streams and the model; other threads reach it by
`submit` and `cancel`, which leave a note in an inbox that is read between two steps. One step:

    1. Cleanup   record the written pages of finished tasks, release their rows
    2. Refill    admit from the waiting queue
    3. Prefill   chunks of prompts      } planned together, computed as one ragged
    4. Decode    one token each         } batch per attention selection
    then sampling, text, and one call per event sink with all its events.

Where the executor runs ahead, a step is planned and launched while the one before it is computed,
and the tokens of that one are read afterwards: text and events run beside the device. A request
that has ended, or was cancelled, in the meantime has a row in one step too many, which is dropped.

Faults: a task whose logits are not finite, or whose sink raises, ends alone. A forward that fails
under an explicitly selected backend ends the tasks of that selection. Anything else ends all open
tasks with an error and the thread with them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from astrai.engine.engine_task import EngineTask, EventSink
from astrai.engine.errors import EngineDeadError, EngineStoppingError, QueueFullError
from astrai.engine.histogram import HistogramSnapshot
from astrai.engine.inspection import Inspection, inspect_engine
from astrai.engine.itl_pace import ItlPace
from astrai.engine.plan import StepGroup, StepPlan
from astrai.engine.protocols import Executor, LaunchedStep, TextStreamsLike
from astrai.engine.request import FinishReason, TokenEvent
from astrai.engine.scheduling_state import HostPool, SchedulingState
from astrai.engine.stats import EngineStats
from astrai.engine.step_log import StepLog
from astrai.engine.task import TaskStatus
from astrai.sampling import SampledRows, Sampler

__all__ = ["InferenceScheduler"]

_log = logging.getLogger(__name__)

# Clients see this text: what the fault was stands in the log, not in an answer.
_DEAD = "the engine has stopped after a fault"

Deliveries = dict[EventSink, list[TokenEvent]]
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
        prefill_chunk: int | None = 512,
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
        self._sampler = sampler
        self._streams = streams
        self._max_open = max_open
        self._strip_leading_space = strip_leading_space
        self._after_step = after_step
        self._pace = None if itl_target_s is None else ItlPace(itl_target_s)
        self._state: SchedulingState[EngineTask] = SchedulingState(
            host_pool, prefill_chunk, self._pace, rope_switch_len, is_batch_invariant
        )
        self._by_handle: dict[int, EngineTask] = {}
        self._stats = EngineStats()
        self._log = StepLog()
        self._pages = (host_pool.n_free_pages, host_pool.n_cached_pages)
        self._first_tokens: list[EngineTask] = []  # tasks whose first token this step gave
        self._in_flight: InFlight | None = None
        self._last_step_at: float | None = None  # end of the last step, None after a pause

        # Guarded by _changed; everything above belongs to the thread.
        self._changed = threading.Condition()
        self._submitted: list[EngineTask] = []
        self._cancelled: list[str] = []
        self._inspections: list[Future[Inspection]] = []  # asked for, not taken yet
        self._open: dict[str, EngineTask] = {}
        self._is_draining = False
        self._is_stopping = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="astrai-scheduler", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def submit(self, task: EngineTask) -> None:
        """Hand a task over. Raises EngineDeadError, EngineStoppingError or QueueFullError."""
        with self._changed:
            if self._fault is not None:
                raise EngineDeadError(_DEAD) from self._fault
            if self._is_draining or self._is_stopping:
                raise EngineStoppingError("the engine is shutting down")
            if len(self._open) >= self._max_open:
                retry_after_s = max(1.0, self._stats.mean_duration_s())
                raise QueueFullError(
                    f"{len(self._open)} requests are open, the limit of this engine; "
                    f"try again in {retry_after_s:.0f} s",
                    retry_after_s,
                )
            task.submitted_at = time.perf_counter()
            self._open[task.task_id] = task
            self._submitted.append(task)
            self._stats.n_submitted += 1
            self._changed.notify_all()

    def cancel(self, task_id: str) -> None:
        """End a task within a step; unknown and finished ids are ignored."""
        with self._changed:
            if task_id in self._open:
                self._cancelled.append(task_id)
                self._changed.notify_all()

    def is_healthy(self) -> bool:
        with self._changed:
            return self._fault is None and self._thread.is_alive() and not self._is_stopping

    def stats(self) -> dict[str, object]:
        with self._changed:
            n_open = len(self._open)
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
        future: Future[Inspection] = Future()
        with self._changed:
            if self._fault is not None:
                raise EngineDeadError(_DEAD) from self._fault
            if self._is_stopping:
                raise EngineStoppingError("the engine is shutting down")
            self._inspections.append(future)
            self._changed.notify_all()
        return future

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take no new task and wait for the open ones. True when all have ended."""
        with self._changed:
            self._is_draining = True
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    def stop(self, timeout_s: float = 30.0) -> None:
        """End all open tasks as cancelled and the thread after its current step. Idempotent.

        Raises RuntimeError when a step does not return in time; the pool is then still in use.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
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
                while self._receive():
                    if self._state.has_work or self._in_flight:
                        self._step()
        except BaseException as fault:  # whatever it is, nobody may be left waiting
            _log.exception("the scheduler met a fault and stops")
            with self._changed:
                self._fault = fault
            error, reason = _DEAD, "error"
        self._abandon()
        self._end_all(reason, error)

    def _abandon(self) -> None:
        """Wait until nothing is computed any more: the memory that it uses may go right after."""
        step, self._in_flight = self._in_flight, None
        for _, launched in [] if step is None else step.groups:
            try:
                launched.result()
            except Exception:
                _log.warning("the step in flight failed", exc_info=True)

    def _receive(self) -> bool:
        """Take in what other threads left; sleeps while there is nothing to do. False to stop."""
        with self._changed:
            while not (
                self._submitted
                or self._cancelled
                or self._inspections
                or self._is_stopping
                or self._state.has_work
                or self._in_flight
            ):
                self._last_step_at = None
                self._changed.wait()
            if self._is_stopping:
                return False
            if not self._submitted and not self._cancelled and not self._inspections:
                return True
            asked, self._inspections = self._inspections, []
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, []
            leaving = [self._open[task_id] for task_id in cancelled if task_id in self._open]
        deliveries: Deliveries = {}
        for task in submitted:
            self._accept(task, deliveries)
        for task in leaving:
            if task.status is not TaskStatus.FINISHED:  # the same id may be cancelled twice
                self._end(task, "cancelled", deliveries)
        self._deliver(deliveries)
        if asked:
            self._show(asked)
        return True

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

    def _accept(self, task: EngineTask, deliveries: Deliveries) -> None:
        params = task.params
        try:
            task.text_handle = self._streams.open(
                list(params.stop),
                list(task.stop_ids),
                task.max_tokens,
                min_tokens=min(params.min_tokens, task.max_tokens),
                skip_special=params.skip_special_tokens,
                strip_leading_space=self._strip_leading_space,
                shown_ids=list(params.shown_token_ids),
            )
        except ValueError as error:  # a stop that the matcher refuses
            task.status = TaskStatus.FINISHED
            _add(deliveries, task, task.take_event("", "error", error=str(error)))
            self._close(task, "error")
            return
        task.sampler_slot = self._sampler.add(params, task.token_ids, task.stop_ids, task.grammar)
        task.waits_for_tokens = params.has_penalties or task.grammar is not None
        self._by_handle[task.text_handle] = task
        self._stats.n_prompt_tokens += task.n_prompt
        self._state.submit(task)

    def _step(self) -> None:
        began_at = time.perf_counter()
        deliveries: Deliveries = {}
        if self._in_flight and not self._state.can_plan_ahead():
            self._collect(deliveries)
        plan: StepPlan[EngineTask] = self._state.plan()
        for task in plan.admitted:
            self._stats.admitted(began_at - task.submitted_at)
        for task, message in plan.refused:
            self._end(task, "error", deliveries, error=message)
        for task in plan.out_of_room:
            self._end(task, "length", deliveries)
        launched = self._launch(plan, deliveries)
        self._collect(deliveries)
        if launched:
            self._in_flight = InFlight(plan, began_at, launched)
        if not self._executor.runs_ahead:
            self._collect(deliveries)
        self._deliver(deliveries)
        if not self._state.running:
            self._state.cleanup()  # pages must be back before the thread goes to sleep
        self._pages = (self._pool.n_free_pages, self._pool.n_cached_pages)
        if self._after_step is not None:
            self._after_step()

    def _launch(self, plan: StepPlan[EngineTask], deliveries: Deliveries) -> list[Launched]:
        launched: list[Launched] = []
        for group in plan.groups:
            slots = [task.sampler_slot for task in group.tasks[: group.n_sampled]]
            try:
                launched.append((group, self._executor.launch(group, slots)))
            except Exception as error:
                if group.selection is None or group.selection.backend is None:
                    raise
                # The client chose a backend that cannot run this; the default one is not in doubt.
                _log.warning("a forward under %s failed: %s", group.selection, error)
                for task in group.tasks:
                    self._end(task, "error", deliveries, error=str(error), keep_pages=False)
        return launched

    def _collect(self, deliveries: Deliveries) -> None:
        """Wait for the step in flight, if there is one, and tell what it has drawn."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return
        for group, launched in step.groups:
            self._publish(group, launched.result(), deliveries)
        self._count_step(step)

    def _publish(
        self, group: StepGroup[EngineTask], sampled: SampledRows, deliveries: Deliveries
    ) -> None:
        """Turn a group's draw into text, events, ends and known tokens."""
        tasks, token_ids = group.tasks, sampled.token_ids
        gone = {i for i, task in enumerate(tasks) if task.status is TaskStatus.FINISHED}
        faulty = (sampled.faulty_rows | sampled.grammar_errors.keys()) - gone
        sound = range(group.n_sampled)
        if faulty or gone:
            sound = [i for i in sound if i not in faulty and i not in gone]  # type: ignore[assignment]
        handles = [tasks[i].text_handle for i in sound]
        pushed = token_ids if len(sound) == len(token_ids) else [token_ids[i] for i in sound]
        text_events = self._streams.push_batch(handles, pushed)
        for i in sound:
            task = tasks[i]
            task.n_output += 1
            task.pending_ids.append(token_ids[i])
            if task.n_output == 1:
                self._first_tokens.append(task)
        if sampled.logprobs is not None:
            for i in sound:
                entry = sampled.logprobs[i]
                if entry is not None:
                    tasks[i].pending_logprobs.append(entry)
        self._stats.n_output_tokens += len(handles)

        ends = [event for event in text_events if event.finish is not None]
        whole = [tasks[i] for i in sorted(sampled.completed_rows)]  # nothing may follow these
        ended: frozenset[int] = faulty | sampled.completed_rows
        if ends:
            finished = {event.handle for event in ends}
            ended |= {i for i in sound if tasks[i].text_handle in finished}
        self._state.complete(group, token_ids, ended)

        by_handle = self._by_handle
        for event in text_events:
            task = by_handle[event.handle]
            if event.finish is None:
                _add(deliveries, task, task.take_event(event.text))
            else:
                # An answer that is whole with its last permitted token was not cut by the limit.
                reason = event.finish
                if reason == "length" and task in whole:
                    reason = "stop"
                last = task.take_event(event.text, reason, event.stop_string)
                self._leave(task, reason)
                _add(deliveries, task, last)
        for task in whole:
            if task.status is not TaskStatus.FINISHED:
                self._end(task, "stop", deliveries)
        for i in sorted(faulty):
            self._end(
                tasks[i],
                "error",
                deliveries,
                error=sampled.grammar_errors.get(i, _fault_of(tasks[i])),
                keep_pages=False,
            )
        for i in sound:
            task = tasks[i]
            if task.every_token and task.pending_ids:
                _add(deliveries, task, task.take_event(""))

    def _count_step(self, step: InFlight) -> None:
        now = time.perf_counter()
        self._stats.n_steps += 1
        ttft_s = [now - task.submitted_at for task in self._first_tokens]
        for seconds in ttft_s:
            self._stats.first_token(seconds)
        n_sampled = sum(group.n_sampled for group, _ in step.groups)
        itl_s = None
        if self._pace is not None and self._last_step_at is not None:
            self._pace.observe([group for group, _ in step.groups], now - self._last_step_at)
        if n_sampled > len(self._first_tokens) and self._last_step_at is not None:
            itl_s = now - self._last_step_at
            self._stats.decode_step(itl_s, n_sampled - len(self._first_tokens))
        self._log.add(step.plan, self._stats.n_steps, step.began_at, now, itl_s, ttft_s)
        self._first_tokens.clear()
        self._last_step_at = now

    def _end(
        self,
        task: EngineTask,
        reason: FinishReason,
        deliveries: Deliveries,
        *,
        error: str | None = None,
        keep_pages: bool = True,
    ) -> None:
        """End a task from outside its text: held-back text is released first."""
        text = self._streams.finish(task.text_handle)
        last = task.take_event(text, reason, error=error)
        self._leave(task, reason, keep_pages)
        _add(deliveries, task, last)

    def _leave(self, task: EngineTask, reason: FinishReason, keep_pages: bool = True) -> None:
        """Give back what the engine holds for a task; its row follows in the next cleanup."""
        self._state.finish(task, keep_pages)
        self._streams.close(task.text_handle)
        del self._by_handle[task.text_handle]
        self._sampler.remove(task.sampler_slot)
        self._close(task, reason)

    def _close(self, task: EngineTask, reason: FinishReason) -> None:
        e2e_s = time.perf_counter() - task.submitted_at
        self._stats.task_finished(reason, e2e_s, task.n_prompt, task.n_output)
        with self._changed:
            del self._open[task.task_id]
            if not self._open:
                self._changed.notify_all()

    def _deliver(self, deliveries: Deliveries) -> None:
        """One call per sink. A sink that raises has lost its reader: its tasks are cancelled."""
        for sink, events in deliveries.items():
            try:
                sink(events)
            except Exception:
                _log.exception("an event sink raised; its requests are cancelled")
                for request_id in {event.request_id for event in events}:
                    self.cancel(request_id)

    def _end_all(self, reason: FinishReason, error: str) -> None:
        """Tell every open task that it is over. Touches neither pool nor streams: after a fault
        their state is unknown, and after a stop they are dropped with the engine."""
        with self._changed:
            tasks: Iterable[EngineTask] = list(self._open.values())
            self._open.clear()
            self._submitted.clear()
            asked, self._inspections = self._inspections, []
            self._changed.notify_all()
        for future in asked:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineStoppingError(error))
        deliveries: Deliveries = {}
        for task in tasks:
            self._stats.finished[reason] += 1
            _add(deliveries, task, task.take_event("", reason, error=error))
        self._state.waiting.clear()
        self._state.running.clear()
        self._deliver(deliveries)


def _fault_of(task: EngineTask) -> str:
    if task.grammar is None:
        return "the model gave no finite logits for this request"
    return (
        "the model gave no finite logits for this request, or its grammar leaves only tokens that "
        "min_tokens forbids"
    )


def _add(deliveries: Deliveries, task: EngineTask, event: TokenEvent) -> None:
    events = deliveries.get(task.on_event)
    if events is None:
        deliveries[task.on_event] = [event]
    else:
        events.append(event)
