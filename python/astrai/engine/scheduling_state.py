"""The scheduling decisions: a state machine with no clock, thread or tensor inside.

Events go in (submit, cancel, the tokens of a completed step), a plan comes out. The pool's host
bookkeeping is the only thing it acts on. `InferenceScheduler` is the thread around it; the
simulator in the tests drives it with a seed. Single-threaded.

A plan is a promise to run it, in order. The next one may be asked for before the tokens of the last
are known (`can_plan_ahead`); a task that turns out to have ended is then part of one step too many,
whose token for it is dropped.

Orders that hold at all times, oldest arrival first:
    running   admission order, which is arrival order
    waiting   preempted tasks, then tasks never admitted; every one younger than all running
so the youngest running task is the last of `running`, and a preempted task goes back to the front
of `waiting`. The oldest running task is preempted by nobody, which is why there is always progress.

Models whose rotary frequencies depend on the length of a text (longrope, dynamic NTK) have two sets
of keys: a task that outgrows the first one computes its text again with the second.

Where answers must not depend on the batch (`is_batch_invariant`), a position is computed in the
same way every time: those of the prompt in chunks, generated ones by one decode step each. A task
that comes back computes its prompt and then replays what it had generated, in groups of their own.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from astrai.engine.itl_pace import ItlPace
from astrai.engine.plan import StepGroup, StepPlan
from astrai.engine.prefill_chunk import PrefillBudget, PrefillChunk
from astrai.engine.task import Task, TaskStatus, decoding_tasks

if TYPE_CHECKING:
    from astrai._C import _RadixEdge

__all__ = ["HostPool", "SchedulingState", "generation_room"]

T = TypeVar("T", bound=Task)


class Admission(Protocol):
    """Where the pool put an admitted task."""

    @property
    def req_idx(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def miss_reason(self) -> str: ...


class HostPool(Protocol):
    """The transactions of `_C.PagePool` that scheduling needs."""

    @property
    def contiguous(self) -> bool: ...
    @property
    def page_size(self) -> int: ...
    @property
    def n_pages(self) -> int: ...
    @property
    def n_free_pages(self) -> int: ...
    @property
    def n_cached_pages(self) -> int: ...
    @property
    def n_free_rows(self) -> int: ...
    @property
    def n_edges(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...
    def fits(self, n_tokens: int) -> bool: ...
    def admit(self, token_ids: list[int], namespace: str = "") -> Admission | None: ...
    def extend_batch(self, req_indices: list[int], new_lens: list[int]) -> int: ...
    def append_batch(self, req_indices: list[int], token_ids: list[int]) -> None: ...
    def append_pending(self, req_indices: list[int]) -> None: ...
    def settle(self, req_indices: list[int], token_ids: Sequence[int]) -> None: ...
    def commit(self, req_idx: int, n_written: int) -> int: ...
    def release(self, req_idx: int) -> None: ...
    def tokens(self, req_idx: int) -> list[int]: ...
    def edges(self, max_edges: int = 256, max_ids: int = 64) -> list[_RadixEdge]: ...


def generation_room(pool: HostPool, n_prompt: int) -> int:
    """How many tokens can follow a prompt of n_prompt tokens; 0 or less when it cannot be served.

    The last sampled token needs a position of the context but no slot of the pool, as it is never
    written.
    """
    room = pool.max_seq_len - n_prompt
    if not pool.contiguous:
        room = min(room, pool.n_pages * pool.page_size - n_prompt + 1)
    return room


class SchedulingState(Generic[T]):
    """Which task prefills, decodes, waits, is preempted or leaves."""

    def __init__(
        self,
        pool: HostPool,
        prefill_chunk: PrefillChunk | int | None = 512,
        pace: ItlPace | None = None,
        rope_switch_len: int | None = None,
        is_batch_invariant: bool = False,
    ) -> None:
        """prefill_chunk: prompt tokens computed in one step, beside one for each decoding task; a
        number holds however many wait, None and 0 are without limit. pace: says where it takes
        fewer. rope_switch_len: tokens of the longest text whose keys are rotated as at first; a
        longer one has other keys throughout. None: all texts are alike. is_batch_invariant:
        generated tokens are never computed as part of a prompt, nor do their pages enter the
        prefix tree."""
        self._pool = pool
        if not isinstance(prefill_chunk, PrefillChunk):
            prefill_chunk = PrefillChunk.fixed(prefill_chunk)
        self._prefill_chunk = prefill_chunk
        # Tokens of a common beginning; None where nobody finds what another has written.
        self._worth_waiting_for: int | None = None
        if self._prefill_chunk is not None and pool.page_size > 1 and not pool.contiguous:
            self._worth_waiting_for = max(pool.page_size, self._prefill_chunk.least // 2)
        self._pace = pace
        self._rope_switch_len = rope_switch_len
        self._is_batch_invariant = is_batch_invariant
        self.waiting: deque[T] = deque()
        self.running: list[T] = []
        self._leaving: list[T] = []  # finished, still holding a row
        self._selections: dict[Any, Any] = {}  # one object for equal ones: groups compare by id
        self._alike: tuple[tuple[str, str], int] = ("", ""), 0  # tokens that two tasks begin with
        self._has_new_room = True  # False while the head of the queue is known not to fit
        self._admitted: list[T] = []  # for the first time, by the plan that is being made
        self.n_preemptions = 0
        self.n_prefix_query_tokens = 0
        self.n_prefix_hit_tokens = 0
        self.miss_reasons: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._leaving)

    # Events

    def submit(self, task: T) -> None:
        """Queue a task behind all others. Its selection is hashable."""
        task.selection = self._selections.setdefault(task.selection, task.selection)
        self.waiting.append(task)
        self._has_new_room = True

    def finish(self, task: T, keep_pages: bool = True) -> None:
        """End a task now (cancelled, stopped, failed); its row goes back in the next cleanup.

        keep_pages False: what it wrote last is not to be trusted, and nothing more of it enters the
        prefix tree; chunks of its prompt that were complete before are there.
        """
        if task.status is TaskStatus.WAITING:
            self.waiting.remove(task)
            self._has_new_room = True
        elif task.status is TaskStatus.RUNNING:
            self.running.remove(task)
            task.keeps_pages = keep_pages
            self._leaving.append(task)
        task.status = TaskStatus.FINISHED

    def complete(
        self, group: StepGroup[T], token_ids: Sequence[int], ended: Collection[int] = ()
    ) -> None:
        """A group's forward is done. token_ids: [n_sampled]. ended: indices of tasks whose token
        was their last; `finish` them afterwards. Tasks that have finished since the plan do not
        count: their rows may be another's by now."""
        running = TaskStatus.RUNNING
        gone = [task for task in group.tasks if task.status is not running]
        if group.only_decodes and not ended and not gone:  # mostly
            for task in group.tasks:
                task.n_pending -= 1
                task.n_written += 1
            self._pool.settle(group.req_indices, token_ids)
            return
        drawing = group.tasks[: group.n_sampled]
        for task, q_len in zip(group.tasks, group.q_lens, strict=True):
            if task.status is running:
                task.n_written += q_len
        for i, task in enumerate(group.tasks[group.n_decode :], group.n_decode):
            if task.status is running and i not in ended:
                self._pool.commit(task.req_idx, task.n_written)
        for task in drawing:
            task.n_pending -= 1
        known = [i for i, task in enumerate(drawing) if task.status is running and i not in ended]
        if len(known) == len(group.tasks):
            self._pool.settle(group.req_indices, token_ids)
        elif known:
            rows = [group.req_indices[i] for i in known]
            self._pool.settle(rows, [token_ids[i] for i in known])

    # The four phases

    def can_plan_ahead(self) -> bool:
        """Whether the next plan needs no result of those before: it surely finds a slot for every
        token, so that it preempts no task, whose tokens must be known, and ends none. False also
        where most tasks would only wait: their step is worth more than the time of reading."""
        n_free = self._pool.n_free_pages + self._pool.n_cached_pages
        return self._has_ample_room(n_free) or self._has_room(n_free)

    def _has_ample_room(self, n_free: int) -> bool:
        """Whether a plan needs no result even if all decode and take a page: mostly so, and known
        by less than `_has_room` looks at."""
        if self._rope_switch_len is not None:
            return False
        if not self._pool.contiguous and len(self.running) > n_free:
            return False
        most = self._pool.max_seq_len
        return not [t for t in self.running if t.waits_for_tokens or t.n_planned >= most]

    def _has_room(self, n_free: int) -> bool:
        tasks = decoding_tasks(self.running)
        n_waiting = sum([task.awaits_a_token for task in self.running])
        if n_waiting > len(tasks):
            return False
        for task in tasks:
            if task.n_planned >= self._pool.max_seq_len or self._outgrows_its_keys(task):
                return False
        page_size = self._pool.page_size
        n_pages = sum([task.n_planned % page_size == 0 for task in tasks])
        return self._pool.contiguous or n_pages <= n_free

    def plan(self) -> StepPlan[T]:
        """Decide the next step: cleanup, refill, prefill, decode. Its tokens count as planned and
        its draws as pending from here on, so it must be run."""
        self.cleanup()
        out_of_room = self._switch_keys()
        prefilling = [task for task in self.running if task.n_planned < task.n_prefill]
        budget = self._prefill_budget(prefilling)
        refused = self._refill(prefilling, budget)
        chunks = self._prefill(prefilling, budget)
        decoding, starved = self._decode()
        out_of_room += starved
        # A task that was preempted for the sake of the decoding ones has lost its chunk.
        chunks = [(task, q_len) for task, q_len in chunks if task.req_idx >= 0]
        groups: list[StepGroup[T]] = []
        if self._is_batch_invariant:
            replays = [(task, 1) for task in self.running if task.replays]
            groups += self._groups([], replays, is_replay=True)
        groups += self._groups(decoding, chunks)
        for group in groups:
            self._promise(group)
        admitted, self._admitted = self._admitted, []
        return StepPlan(groups, out_of_room, refused, admitted)

    def _promise(self, group: StepGroup[T]) -> None:
        if group.only_decodes:  # mostly: one walk
            for task in group.tasks:
                task.n_planned += 1
                task.n_drawn += 1
                task.n_pending += 1
            self._pool.append_pending(group.req_indices)
            return
        for task, q_len in zip(group.tasks, group.q_lens, strict=True):
            task.n_planned += q_len
        for task in group.tasks[: group.n_sampled]:
            task.n_drawn += 1
            task.n_pending += 1
        if group.n_sampled:
            self._pool.append_pending(group.req_indices[: group.n_sampled])

    def cleanup(self) -> None:
        """Record the written pages of finished tasks, then release their rows."""
        for task in self._leaving:
            self._give_back(task)
        self._leaving.clear()

    def _prefill_budget(self, prefilling: list[T]) -> PrefillBudget | None:
        """What the next step may compute of prompts, None for all there is. Queued prompts count as
        far as they can come in now, and with all their tokens: what the prefix tree holds of them
        is not known before."""
        if self._prefill_chunk is None:
            return None
        n_rows = self._pool.n_free_rows if self._has_new_room else 0
        uncomputed = itertools.chain(
            (task.n_prefill - task.n_planned for task in prefilling),
            (len(task.token_ids) for task in itertools.islice(self.waiting, n_rows)),
        )
        return self._prefill_chunk.budget(uncomputed, len(prefilling) < len(self.running))

    def _refill(self, prefilling: list[T], budget: PrefillBudget | None) -> list[tuple[T, str]]:
        """Admit from the head of the queue while there is room, and while the next step could
        compute something of the prompt: one that came in earlier could not, and would miss the
        pages that those before it write until then. FIFO: a head that does not fit now keeps those
        behind it waiting, so that it cannot starve. prefilling: tasks whose prompt is not planned
        to its end; those that come in join them. budget: of the step's prompts."""
        refused: list[tuple[T, str]] = []
        n_uncomputed = sum([task.n_prefill - task.n_planned for task in prefilling])
        writing = self._writing(self.running) if self.waiting else []
        while self.waiting and self._has_new_room and self._pool.n_free_rows > 0:
            if budget is not None and n_uncomputed >= budget.n_tokens:
                break
            task = self.waiting[0]
            if self._soon_finds_more(task, writing):
                break
            try:
                admission = self._admit(task)
            except ValueError as error:
                self.waiting.popleft()
                task.status = TaskStatus.FINISHED
                refused.append((task, str(error)))
                continue
            if admission is None:
                if self.running:
                    self._has_new_room = False
                    break
                # Nobody is left whose end would make room.
                self.waiting.popleft()
                task.status = TaskStatus.FINISHED
                refused.append((task, "the KV pool has no room for this prompt"))
                continue
            if not self._leaves_headroom():
                self._pool.release(admission.req_idx)
                self._has_new_room = False
                break
            self.waiting.popleft()
            self._activate(task, admission)
            prefilling.append(task)
            writing += self._writing([task])
            n_uncomputed += task.n_prefill - task.n_planned
        return refused

    def _writing(self, tasks: list[T]) -> list[T]:
        """Those with so much of their prompt unwritten that to wait for it can be worth it."""
        least = self._worth_waiting_for
        return [] if least is None else [t for t in tasks if t.n_prefill - t.n_written >= least]

    def _soon_finds_more(self, task: T, writing: list[T]) -> bool:
        """Whether the next steps compute so much of the beginning of this queued prompt, for one of
        `writing`, that to wait for it is less work than to compute it again beside it."""
        least = self._worth_waiting_for
        if least is None or not writing:
            return False
        most = self._prefill_len(task) - 1  # the last token is computed in any case
        namespace = self._namespace(task)
        return any(
            (end := other.n_written + least) <= min(other.n_prefill, most)
            and self._begin_alike(task, other, end)
            and self._namespace(other) == namespace
            for other in writing
        )

    def _begin_alike(self, task: T, other: T, end: int) -> bool:
        """Have both the same first tokens? What is known of the last pair is not compared again:
        one long prompt may wait for another through many plans."""
        ours, theirs = task.token_ids, other.token_ids
        if ours[end - 1] != theirs[end - 1]:
            return False
        pair, begin = self._alike
        if pair != (task.task_id, other.task_id):
            begin = 0
        if ours[begin:end] != theirs[begin:end]:
            return False
        self._alike = (task.task_id, other.task_id), end
        return True

    def _leaves_headroom(self) -> bool:
        """True when every running task could still get a page: admitting a task only to preempt
        it in its first steps would compute its prompt for nothing."""
        if self._pool.contiguous or not self.running:
            return True
        return self._pool.n_free_pages + self._pool.n_cached_pages >= len(self.running)

    def _admit(self, task: T) -> Admission | None:
        """Ask for a row. Raises ValueError for a text that the pool can never hold."""
        n_prefill = self._prefill_len(task)
        admission = self._pool.admit(task.token_ids[:n_prefill], self._namespace(task))
        replayed = task.token_ids[n_prefill:]
        if admission is None or not replayed:
            return admission
        req_idx = admission.req_idx
        if not self._pool.extend_batch([req_idx], [len(task.token_ids)]):
            self._pool.release(req_idx)
            return None
        for token_id in replayed:
            self._pool.append_batch([req_idx], [token_id])
        return admission

    def _namespace(self, task: T) -> str:
        """Of the prefix tree: texts with other keys share no pages."""
        if self._rope_switch_len is None:
            return task.namespace
        return ("long " if self._is_long(task.token_ids) else "short ") + task.namespace

    def _prefill_len(self, task: T) -> int:
        """How many tokens of a task that asks for a row are to be computed as a prompt: all, or
        what was one at its first stay with these keys."""
        has_same_keys = bool(task.rope_offset) == self._is_long(task.token_ids)
        if self._is_batch_invariant and task.n_prefill and has_same_keys:
            return task.n_prefill
        return len(task.token_ids)

    def _place(self, task: T, admission: Admission) -> None:
        task.req_idx = admission.req_idx
        task.n_prefill = self._prefill_len(task)
        task.n_known = len(task.token_ids)
        task.n_planned = task.n_written = admission.n_cached
        task.rope_offset = (self._rope_switch_len or 0) if self._is_long(task.token_ids) else 0

    def _activate(self, task: T, admission: Admission) -> None:
        self._place(task, admission)
        task.status = TaskStatus.RUNNING
        if not task.is_admitted:
            task.is_admitted = True
            task.n_cached = admission.n_cached
            self._admitted.append(task)
            self.n_prefix_query_tokens += task.n_prefill
            self.n_prefix_hit_tokens += admission.n_cached
            self.miss_reasons[admission.miss_reason] += 1
        self.running.append(task)

    def _is_long(self, token_ids: list[int]) -> bool:
        return self._rope_switch_len is not None and len(token_ids) > self._rope_switch_len

    def _outgrows_its_keys(self, task: T) -> bool:
        """Whether the next token of a decoding task makes its text a long one."""
        switch_len = self._rope_switch_len
        return switch_len is not None and not task.rope_offset and task.n_planned >= switch_len

    def _switch_keys(self) -> list[T]:
        """Start the tasks anew whose texts become long ones, from their tokens; each keeps its
        place among the others. Returns those that must end for lack of room."""
        out_of_room: list[T] = []
        if self._rope_switch_len is None:
            return out_of_room
        outgrown = [task for task in decoding_tasks(self.running) if self._outgrows_its_keys(task)]
        for task in outgrown:
            if task.status is not TaskStatus.RUNNING:
                continue  # preempted for the sake of an older one; it comes back as a long one
            if not self._pool.fits(task.n_planned + 1):
                out_of_room.append(task)
                self.finish(task)
                continue
            task.token_ids = self._pool.tokens(task.req_idx)
            self._give_back(task)
            while (admission := self._admit(task)) is None and self.running[-1] is not task:
                self._preempt(self.running[-1])
            if admission is None:
                self._send_back(task)
            else:
                self._place(task, admission)
        return out_of_room

    def _prefill(self, prefilling: list[T], budget: PrefillBudget | None) -> list[tuple[T, int]]:
        """Chunks for the tasks whose prompt is not planned to its end, oldest first."""
        pace = self._pace
        chunks: list[tuple[T, int]] = []
        if pace is not None and prefilling:
            pace.begin_step([task.n_planned for task in decoding_tasks(self.running)])
        for task in prefilling:
            q_len = task.n_prefill - task.n_planned
            if budget is not None:
                q_len = budget.most(task.n_planned, q_len)
            if pace is not None:
                q_len = pace.take(task.n_planned, q_len)
            if q_len == 0:
                break
            if budget is not None:
                budget.take(task.n_planned, q_len)
            chunks.append((task, q_len))
        return chunks

    def _decode(self) -> tuple[list[T], list[T]]:
        """Give each decoding task a slot for its next token, preempting the youngest tasks when
        the pool is full. Returns the decoding tasks and those that must end for lack of room."""
        decoding = decoding_tasks(self.running)
        out_of_room: list[T] = []
        while decoding:
            n_extended = self._pool.extend_batch(
                [task.req_idx for task in decoding], [task.n_planned + 1 for task in decoding]
            )
            if n_extended == len(decoding):
                break
            at_the_end = [task for task in decoding if task.n_planned >= self._pool.max_seq_len]
            if at_the_end:  # of the context, behind which no preemption makes room
                for task in at_the_end:
                    self.finish(task)
                out_of_room += at_the_end
                decoding = [task for task in decoding if task.n_planned < self._pool.max_seq_len]
                continue
            youngest = self.running[-1]
            if len(self.running) == 1 and not self._is_worth_preempting(youngest):
                # Nobody is left to make room: what has been generated is all there can be.
                out_of_room.append(youngest)
                self.finish(youngest)
                return [], out_of_room
            self._preempt(youngest)
            decoding = [task for task in decoding if task.req_idx >= 0]
        return decoding, out_of_room

    def _is_worth_preempting(self, task: T) -> bool:
        """May a task that runs alone find room by coming back? It may when it holds a private
        copy of a page of the tree, which it then does without. Each stay gives a token at least,
        so coming back has an end."""
        return self._pool.fits(task.n_planned + 1)

    def _preempt(self, task: T) -> None:
        """Send the youngest running task back to the head of the queue, to be recomputed later.

        Its written pages stay in the prefix tree until someone needs them.
        """
        task.token_ids = self._pool.tokens(task.req_idx)
        self._give_back(task)
        self._send_back(task)

    def _send_back(self, task: T) -> None:
        task.status = TaskStatus.WAITING
        task.n_preemptions += 1
        self.n_preemptions += 1
        self.running.remove(task)
        self.waiting.appendleft(task)

    def _give_back(self, task: T) -> None:
        if task.keeps_pages:
            n_kept = task.n_written
            if self._is_batch_invariant:
                n_kept = min(n_kept, task.n_prefill)
            self._pool.commit(task.req_idx, n_kept)
        self._pool.release(task.req_idx)
        task.req_idx = -1
        self._has_new_room = True

    def _groups(
        self, decoding: list[T], chunks: list[tuple[T, int]], is_replay: bool = False
    ) -> list[StepGroup[T]]:
        """One group per attention selection, in order of first appearance. chunks: tasks beside the
        decoding ones, with how many tokens they compute; all of a replay are."""
        # submit made equal selections identical
        if len(self._selections) == 1:
            return [self._group(decoding, chunks, is_replay)] if decoding or chunks else []
        selections = dict.fromkeys([id(task.selection) for task in decoding])
        selections |= dict.fromkeys([id(task.selection) for task, _ in chunks])
        return [
            self._group(
                [task for task in decoding if id(task.selection) == selection],
                [chunk for chunk in chunks if id(chunk[0].selection) == selection],
                is_replay,
            )
            for selection in selections
        ]

    def _group(
        self, decoding: list[T], chunks: list[tuple[T, int]], is_replay: bool
    ) -> StepGroup[T]:
        # What ends before a token that is not known draws none and goes last.
        partial = [(t, q_len) for t, q_len in chunks if t.n_planned + q_len < t.n_known]
        if partial:
            chunks = [(t, q_len) for t, q_len in chunks if t.n_planned + q_len >= t.n_known]
            chunks += partial
        tasks = decoding + [task for task, _ in chunks]
        has_offsets = self._rope_switch_len is not None
        return StepGroup(
            selection=tasks[0].selection,
            tasks=tasks,
            req_indices=[task.req_idx for task in tasks],
            starts=[task.n_planned for task in tasks],
            q_lens=[1] * len(decoding) + [q_len for _, q_len in chunks],
            n_sampled=len(tasks) - len(partial),
            n_decode=len(tasks) if is_replay else len(decoding),
            rope_offsets=[task.rope_offset for task in tasks] if has_offsets else None,
            is_replay=is_replay,
        )
