"""`Publisher`: what becomes of a task between its acceptance and its last event.

Draws become text, events, known tokens and ends; what a task holds beside its row (text stream,
sampler slot) is taken and given back here. Events are gathered, and each sink gets all of its own
in one call. Belongs to the scheduler's thread.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from astrai.engine.engine_task import EngineTask, EventSink
from astrai.engine.inbox import Inbox
from astrai.engine.plan import StepGroup
from astrai.engine.protocols import TextEventLike, TextStreamsLike
from astrai.engine.request import FinishReason, TokenEvent
from astrai.engine.scheduling_state import SchedulingState
from astrai.engine.stats import EngineStats
from astrai.engine.task import TaskStatus
from astrai.sampling import SampledRows, Sampler

__all__ = ["Publisher"]

_log = logging.getLogger(__name__)


class Publisher:
    """Nothing reaches a sink before `deliver`."""

    def __init__(
        self,
        state: SchedulingState[EngineTask],
        sampler: Sampler,
        streams: TextStreamsLike,
        inbox: Inbox,
        stats: EngineStats,
        strip_leading_space: bool,
    ) -> None:
        """strip_leading_space: as the tokenizer says."""
        self._state = state
        self._sampler = sampler
        self._streams = streams
        self._inbox = inbox
        self._stats = stats
        self._strip_leading_space = strip_leading_space
        self._deliveries: defaultdict[EventSink, list[TokenEvent]] = defaultdict(list)

    def accept(self, task: EngineTask) -> None:
        """Give a submitted task its text stream and its sampler slot, and queue it."""
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
            self._deliveries[task.on_event].append(task.take_event("", "error", error=str(error)))
            self._close(task, "error")
            return
        task.sampler_slot = self._sampler.add(params, task.token_ids, task.stop_ids, task.grammar)
        task.waits_for_tokens = task.grammar is not None  # the mask follows from the last token
        self._stats.n_prompt_tokens += task.n_prompt
        self._state.submit(task)

    def publish(self, group: StepGroup[EngineTask], sampled: SampledRows) -> list[EngineTask]:
        """Turn a group's draw into text, events, ends and known tokens. Returns the tasks whose
        first token it gave."""
        tasks, token_ids = group.tasks, sampled.token_ids
        finished = TaskStatus.FINISHED
        gone = {i for i, task in enumerate(tasks) if task.status is finished}
        faulty = (sampled.faulty_rows | sampled.errors.keys()) - gone
        sound: Sequence[int] = range(group.n_sampled)
        drawing, drawn = tasks[: group.n_sampled], token_ids
        if faulty or gone:
            sound = [i for i in sound if i not in faulty and i not in gone]
            drawing, drawn = [tasks[i] for i in sound], [token_ids[i] for i in sound]
        texts, text_ends = self._streams.push_texts([task.text_handle for task in drawing], drawn)
        if sampled.logprobs is not None:
            for i in sound:
                entry, pending = sampled.logprobs[i], tasks[i].pending_logprobs
                if entry is not None and pending is not None:
                    pending.append(entry)
        self._stats.n_output_tokens += len(drawing)

        whole = [tasks[i] for i in sorted(sampled.completed_rows)]  # nothing may follow these
        ended: frozenset[int] = faulty | sampled.completed_rows
        ends = {event.handle: event for event in text_ends}
        if ends:
            ended |= {i for i in sound if tasks[i].text_handle in ends}
        self._state.complete(group, token_ids, ended)

        first_tokens: list[EngineTask] = []
        silent: list[EngineTask] = []
        sink: EventSink | None = None
        deliveries: list[TokenEvent] = []  # of this sink: consecutive tasks mostly share one
        for task, token_id, text in zip(drawing, drawn, texts, strict=True):
            task.n_output = n_output = task.n_output + 1
            if n_output == 1:
                first_tokens.append(task)
            if ends and task.text_handle in ends:
                task.pending_ids.append(token_id)
                self._end_text(task, ends[task.text_handle], is_whole=task in whole)
            elif text:
                if task.on_event is not sink:
                    sink = task.on_event
                    deliveries = self._deliveries[sink]
                deliveries.append(task.next_event(token_id, text))
            else:
                task.pending_ids.append(token_id)
                silent.append(task)
        for task in whole:
            if task.status is not TaskStatus.FINISHED:
                self.end(task, "stop")
        for i in sorted(faulty):
            error = sampled.errors.get(i, _fault_of(tasks[i]))
            self.end(tasks[i], "error", error=error, keep_pages=False)
        for task in silent:
            if task.every_token and task.pending_ids:
                self._deliveries[task.on_event].append(task.take_event(""))
        return first_tokens

    def _end_text(self, task: EngineTask, end: TextEventLike, is_whole: bool) -> None:
        """Tell that a task's text has ended."""
        reason: FinishReason = "stop"
        # An answer that is whole with its last permitted token was not cut by the limit.
        if end.finish == "length" and not is_whole:
            reason = "length"
        last = task.take_event(end.text, reason, end.stop_string)
        self._leave(task, reason)
        self._deliveries[task.on_event].append(last)

    def end(
        self,
        task: EngineTask,
        reason: FinishReason,
        *,
        error: str | None = None,
        keep_pages: bool = True,
    ) -> None:
        """End a task from outside its text: held-back text is released first."""
        text = self._streams.finish(task.text_handle)
        last = task.take_event(text, reason, error=error)
        self._leave(task, reason, keep_pages)
        self._deliveries[task.on_event].append(last)

    def end_all(self, tasks: Iterable[EngineTask], reason: FinishReason, error: str) -> None:
        """Tell open tasks that it is over, as the thread ends. Touches neither pool nor streams:
        after a fault their state is unknown, and after a stop they are dropped with the engine."""
        for task in tasks:
            self._stats.finished[reason] += 1
            self._deliveries[task.on_event].append(task.take_event("", reason, error=error))

    def deliver(self) -> None:
        """One call per sink. A sink that raises has lost its reader: its tasks are cancelled."""
        deliveries, self._deliveries = self._deliveries, defaultdict(list)
        for sink, events in deliveries.items():
            try:
                sink(events)
            except Exception:
                _log.exception("an event sink raised; its requests are cancelled")
                for request_id in {event.request_id for event in events}:
                    self._inbox.cancel(request_id)

    def _leave(self, task: EngineTask, reason: FinishReason, keep_pages: bool = True) -> None:
        """Give back what the engine holds for a task; its row follows in the next cleanup."""
        self._state.finish(task, keep_pages)
        self._streams.close(task.text_handle)
        self._sampler.remove(task.sampler_slot)
        self._close(task, reason)

    def _close(self, task: EngineTask, reason: FinishReason) -> None:
        e2e_s = time.perf_counter() - task.submitted_at
        self._stats.task_finished(reason, e2e_s, task.n_prompt, task.n_output)
        self._inbox.close(task)


def _fault_of(task: EngineTask) -> str:
    if task.grammar is None:
        return "the model gave no finite logits for this request"
    return (
        "the model gave no finite logits for this request, or its grammar leaves only tokens that "
        "min_tokens forbids"
    )
