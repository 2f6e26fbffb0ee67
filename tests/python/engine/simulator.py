"""Drives `SchedulingState` with a seed and a pretended model, and checks what it decides.

The pretended KV memory holds, for each token slot, a number that depends on every token up to that
position. A step may only extend what it can read: writing position p needs the number of p - 1
from the slot that the pool's table names. A wrong page, an early prefix match, a lost token or a
slot given to two requests changes the numbers, hence the next tokens, hence the outputs.

Ahead, the next step is planned and computed before the state hears of the last one's tokens, as on
a GPU: the pretended device then finds a pending token where the row's last draw has left it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astrai.engine.itl_pace import ItlPace
from astrai.engine.plan import StepGroup, StepPlan
from astrai.engine.prefill_chunk import PrefillChunk
from astrai.engine.scheduling_state import SchedulingState
from astrai.engine.task import Task, TaskStatus

VOCAB_SIZE = 11
LONG = 5  # where the numbers of a long text begin
_PRIME = 1_000_003


def chain(number: int, token_id: int, is_decoded: bool = False) -> int:
    """What a slot holds, from what the slot before holds. is_decoded: computed by a decode step,
    where that makes a difference."""
    return (number * 31 + token_id + (400 if is_decoded else 1)) % _PRIME


def expected_output(
    prompt_ids: list[int], n_tokens: int, switch_len: int | None = None, tells_apart: bool = False
) -> list[int]:
    """What a request generates, whoever runs beside it. Texts of more than switch_len tokens have
    other numbers from the first token on. tells_apart: tokens that are decoded have other numbers
    than those of a prompt, which a text becomes when it outgrows switch_len."""
    output: list[int] = []
    for _ in range(n_tokens):
        ids = prompt_ids + output
        is_long = switch_len is not None and len(ids) > switch_len
        n_prefill = len(prompt_ids)
        if switch_len is not None and is_long:
            n_prefill = max(n_prefill, switch_len + 1)
        number = LONG if is_long else 0
        for i, token_id in enumerate(ids):
            number = chain(number, token_id, tells_apart and i >= n_prefill)
        output.append(number % VOCAB_SIZE)
    return output


@dataclass(slots=True, eq=False)
class SimTask(Task):
    n_wanted: int = 1
    prompt_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    arrival: int = 0


class Simulator:
    """One pool, one state and the tasks it has seen."""

    def __init__(
        self,
        pool: Any,
        seed: int,
        prefill_chunk: PrefillChunk | int | None,
        is_ahead: bool = False,
        pace: ItlPace | None = None,
        switch_len: int | None = None,
        is_batch_invariant: bool = False,
    ) -> None:
        self.pool = pool
        self.state: SchedulingState[SimTask] = SchedulingState(
            pool, prefill_chunk, pace, switch_len, is_batch_invariant
        )
        self.tells_apart = is_batch_invariant
        self.n_replayed = 0
        self.switch_len = switch_len
        self.random = random.Random(seed)
        self.prefill_chunk = (
            prefill_chunk
            if isinstance(prefill_chunk, PrefillChunk)
            else PrefillChunk.fixed(prefill_chunk)
        )
        self.memory = np.full(pool.n_tokens + 1, -1, np.int64)
        self.table = np.asarray(pool.table)
        self.is_ahead = is_ahead
        self.last_ids = np.full(pool.max_batch_size, -1)  # what the device drew last for each row
        self.in_flight: list[tuple[StepGroup[SimTask], list[int]]] = []
        self.n_planned_ahead = 0
        self.n_wasted = 0
        self.tasks: list[SimTask] = []
        self.cancelled: list[SimTask] = []
        self.out_of_room: list[SimTask] = []
        self.first_admissions: list[int] = []

    def submit(
        self, prompt_ids: list[int], n_wanted: int, namespace: str = "", knows_end: bool = False
    ) -> SimTask:
        """knows_end: the state is told how many tokens are wanted, and plans no more."""
        task = SimTask(
            f"t{len(self.tasks)}",
            list(prompt_ids),
            namespace,
            max_tokens=n_wanted if knows_end else None,
            waits_for_tokens=self.is_ahead and self.random.random() < 0.2,
            n_wanted=n_wanted,
            prompt_ids=list(prompt_ids),
            arrival=len(self.tasks),
        )
        self.tasks.append(task)
        self.state.submit(task)
        return task

    def cancel(self, task: SimTask) -> None:
        if task.status is not TaskStatus.FINISHED:
            self.state.finish(task)
            self.cancelled.append(task)

    def step(self) -> StepPlan[SimTask]:
        """Plan, check the plan, compute it, check the pool."""
        if self.in_flight:
            if self.state.can_plan_ahead():
                self.n_planned_ahead += 1
            else:
                self._collect()
        known = {id(task) for task in self.state.running}
        n_preempted = self.state.n_preemptions
        plan = self.state.plan()
        if self.in_flight:
            assert self.state.n_preemptions == n_preempted and plan.out_of_room == []
        self.out_of_room += plan.out_of_room
        assert plan.refused == []
        for task in self.state.running:
            if id(task) not in known and task.n_preemptions == 0:
                self.first_admissions.append(task.arrival)
        self._check_plan(plan)
        launched = [(group, self._launch(group)) for group in plan.groups]
        self._collect()
        self.in_flight = launched
        if not self.is_ahead:
            self._collect()
        self.pool.check_integrity()
        return plan

    def _launch(self, group: StepGroup[SimTask]) -> list[int]:
        """Compute a group on the pretended device."""
        token_ids = []
        for i, task in enumerate(group.tasks):
            offset = 0 if group.rope_offsets is None else group.rope_offsets[i]
            assert offset in (0, self.switch_len)
            first = LONG if offset else 0
            number = self._forward(group, i, first)
            if i < group.n_sampled:
                token_ids.append(number % VOCAB_SIZE)
                self.last_ids[task.req_idx] = token_ids[-1]
        return token_ids

    def _collect(self) -> None:
        """Tell the state what the steps in flight have drawn."""
        for group, token_ids in self.in_flight:
            ended = set()
            for i, task in enumerate(group.tasks[: group.n_sampled]):
                if task.status is TaskStatus.FINISHED:
                    self.n_wasted += 1
                    continue
                task.output_ids.append(token_ids[i])
                if len(task.output_ids) == task.n_wanted:
                    ended.add(i)
            self.state.complete(group, token_ids, ended)
            for i in ended:
                self.state.finish(group.tasks[i])
        self.in_flight = []

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left to do. Returns how many steps that took."""
        for n_steps in range(max_steps):
            if not self.state.has_work and not self.in_flight:
                return n_steps
            self.step()
        raise AssertionError(f"tasks are left after {max_steps} steps")

    def check_outputs(self) -> None:
        """Every task that ran to its end has generated exactly what it generates alone."""
        cut_short = {id(task) for task in self.cancelled + self.out_of_room}
        for task in self.tasks:
            expected = expected_output(
                task.prompt_ids, task.n_wanted, self.switch_len, self.tells_apart
            )
            if id(task) in cut_short:
                expected = expected[: len(task.output_ids)]
            assert task.output_ids == expected, task.task_id

    def check_all_given_back(self) -> None:
        assert self.pool.n_free_rows == self.pool.max_batch_size
        assert self.pool.n_held_pages == 0

    def _forward(self, group: StepGroup[SimTask], i: int, first: int) -> int:
        """The number that the last new token of the group's task i leaves behind."""
        task, start, q_len = group.tasks[i], group.starts[i], group.q_lens[i]
        is_decoding = i < group.n_decode
        tokens = self.pool.tokens(task.req_idx)[start : start + q_len]
        assert len(tokens) == q_len, f"{task.task_id} has no tokens up to {start + q_len}"
        if group.is_replay:
            assert is_decoding and tokens != [-1]
            self.n_replayed += 1
        elif is_decoding:
            assert tokens in ([self.last_ids[task.req_idx]], [-1])
            tokens = [int(self.last_ids[task.req_idx])]
        slots = self.table[task.req_idx]
        number = int(self.memory[slots[start - 1]]) if start else first
        assert number >= 0, f"{task.task_id} reads a slot that nobody has written"
        for position, token_id in enumerate(tokens, start):
            number = chain(number, token_id, self.tells_apart and is_decoding)
            self.memory[slots[position]] = number
        return number

    def _check_plan(self, plan: StepPlan[SimTask]) -> None:
        running, waiting = self.state.running, list(self.state.waiting)
        order = [task.arrival for task in running + waiting]
        assert order == sorted(order), "running and waiting are not in arrival order"
        assert len(running) <= self.pool.max_batch_size
        rows = [row for group in plan.groups for row in group.req_indices]
        assert len(rows) == len(set(rows))
        n_prefill = 0
        for group in plan.groups:
            for i, task in enumerate(group.tasks):
                n_tokens = len(task.prompt_ids) + task.n_drawn - (i < group.n_sampled)
                reaches_end = group.starts[i] + group.q_lens[i] == n_tokens
                assert reaches_end == (i < group.n_sampled)
                assert (group.starts[i] >= task.n_prefill) == (i < group.n_decode)
                if i >= group.n_decode:
                    n_prefill += group.q_lens[i]
        if self.prefill_chunk:
            assert n_prefill <= self.prefill_chunk.most
        if running and not self.in_flight:
            assert rows, "tasks are running but none has work"
