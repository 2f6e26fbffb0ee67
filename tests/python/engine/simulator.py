"""Drives `SchedulingState` with a seed and a pretended model, and checks what it decides.

The pretended KV memory holds, for each token slot, a number that depends on every token up to that
position. A step may only extend what it can read: writing position p needs the number of p - 1
from the slot that the pool's table names. A wrong page, an early prefix match, a lost token or a
slot given to two requests changes the numbers, hence the next tokens, hence the outputs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astrai.engine.plan import StepPlan
from astrai.engine.scheduling_state import SchedulingState
from astrai.engine.task import Task, TaskStatus

VOCAB_SIZE = 11
_PRIME = 1_000_003


def chain(number: int, token_id: int) -> int:
    """What a slot holds, from what the slot before holds."""
    return (number * 31 + token_id + 1) % _PRIME


def expected_output(prompt_ids: list[int], n_tokens: int) -> list[int]:
    """What a request generates, whoever runs beside it."""
    number = 0
    for token_id in prompt_ids:
        number = chain(number, token_id)
    output = []
    for _ in range(n_tokens):
        output.append(number % VOCAB_SIZE)
        number = chain(number, output[-1])
    return output


@dataclass(slots=True, eq=False)
class SimTask(Task):
    n_wanted: int = 1
    prompt_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    arrival: int = 0


class Simulator:
    """One pool, one state and the tasks it has seen."""

    def __init__(self, pool: Any, seed: int, prefill_chunk: int | None) -> None:
        self.pool = pool
        self.state: SchedulingState[SimTask] = SchedulingState(pool, prefill_chunk)
        self.random = random.Random(seed)
        self.prefill_chunk = prefill_chunk
        self.memory = np.full(pool.n_tokens + 1, -1, np.int64)
        self.table = np.asarray(pool.table)
        self.tasks: list[SimTask] = []
        self.cancelled: list[SimTask] = []
        self.out_of_room: list[SimTask] = []
        self.first_admissions: list[int] = []

    def submit(self, prompt_ids: list[int], n_wanted: int, namespace: str = "") -> SimTask:
        task = SimTask(
            f"t{len(self.tasks)}",
            list(prompt_ids),
            namespace,
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
        known = {id(task) for task in self.state.running}
        plan = self.state.plan()
        self.out_of_room += plan.out_of_room
        assert plan.refused == []
        for task in self.state.running:
            if id(task) not in known and task.n_preemptions == 0:
                self.first_admissions.append(task.arrival)
        self._check_plan(plan)
        for group in plan.groups:
            token_ids = []
            for i, task in enumerate(group.tasks):
                number = self._forward(task, group.starts[i], group.q_lens[i])
                if i < group.n_sampled:
                    token_ids.append(number % VOCAB_SIZE)
                    task.output_ids.append(token_ids[-1])
            ended = {
                i
                for i, task in enumerate(group.tasks[: group.n_sampled])
                if len(task.output_ids) == task.n_wanted
            }
            self.state.complete(group, token_ids, ended)
            for i in ended:
                self.state.finish(group.tasks[i])
        self.pool.check_integrity()
        return plan

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left to do. Returns how many steps that took."""
        for n_steps in range(max_steps):
            if not self.state.has_work:
                return n_steps
            self.step()
        raise AssertionError(f"tasks are left after {max_steps} steps")

    def check_outputs(self) -> None:
        """Every task that ran to its end has generated exactly what it generates alone."""
        cut_short = {id(task) for task in self.cancelled + self.out_of_room}
        for task in self.tasks:
            expected = expected_output(task.prompt_ids, task.n_wanted)
            if id(task) in cut_short:
                expected = expected[: len(task.output_ids)]
            assert task.output_ids == expected, task.task_id

    def check_all_given_back(self) -> None:
        assert self.pool.n_free_rows == self.pool.max_batch_size
        assert self.pool.n_held_pages == 0

    def _forward(self, task: SimTask, start: int, q_len: int) -> int:
        tokens = (task.prompt_ids + task.output_ids)[start : start + q_len]
        assert len(tokens) == q_len, f"{task.task_id} has no tokens up to {start + q_len}"
        slots = self.table[task.req_idx]
        number = int(self.memory[slots[start - 1]]) if start else 0
        assert number >= 0, f"{task.task_id} reads a slot that nobody has written"
        for position, token_id in enumerate(tokens, start):
            number = chain(number, token_id)
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
                reaches_end = group.starts[i] + group.q_lens[i] == len(
                    task.prompt_ids + task.output_ids
                )
                assert reaches_end == (i < group.n_sampled)
                assert (group.starts[i] >= task.n_prefill) == (i < group.n_decode)
                if i >= group.n_decode:
                    n_prefill += group.q_lens[i]
        if self.prefill_chunk:
            assert n_prefill <= self.prefill_chunk
        if running:
            assert rows, "tasks are running but none has work"
