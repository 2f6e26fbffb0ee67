"""Objects of astrai._C in a module of another project, and the C++ scheduling state against the
engine's.

tests/install/run builds `second_module` and runs this with it on the path.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import second_module

from astrai import _C
from astrai.engine.plan import StepGroup
from astrai.engine.scheduling_state import SchedulingState, generation_room
from astrai.engine.task import Task, TaskStatus


def test_a_pool_of_ours_is_changed_by_their_code() -> None:
    pool = _C.PagePool(2, 64, 4, 64)

    row = second_module.admit(pool, [1, 2, 3, 4, 5])

    assert pool.tokens(row) == [1, 2, 3, 4, 5]
    assert pool.n_held_pages == 2
    assert second_module.same_pool(pool) is pool


def test_a_pool_of_theirs_is_ours() -> None:
    pool = second_module.make_pool(32)

    assert type(pool) is _C.PagePool
    assert pool.n_pages == 8
    assert pool.admit([1, 2, 3]) is not None
    pool.check_integrity()


def test_a_tree_of_ours_is_read_by_their_code() -> None:
    tree = _C.RadixCache(2)
    tree.record(0, [1, 2, 3, 4], 0)
    tree.record(1, [1, 2, 3, 4], 1)

    assert second_module.n_cached_tokens(tree, [1, 2, 3, 4, 5]) == 4


def test_a_shared_table_of_theirs_lives_as_long_as_our_streams() -> None:
    table = second_module.make_table([b"a", b"bc"])
    assert type(table) is _C.TokenTable
    n_owners = second_module.use_count(table)

    streams = _C.TextStreams(table)

    assert second_module.use_count(table) == n_owners + 1
    del table
    handle = streams.open([], [], max_tokens=4)
    assert streams.push_batch([handle], [1])[0].text == "bc"


def test_their_exceptions_are_ours() -> None:
    with pytest.raises(_C.KernelUnavailableError, match="second_module has no kernels"):
        second_module.fail()
    pool = _C.PagePool(1, 64, 4, 16)
    second_module.admit(pool, [1])
    with pytest.raises(_C.Error, match="no room for a prompt of 2"):
        second_module.admit(pool, [1, 2])


def test_an_object_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError):
        second_module.admit(_C.RadixCache(2), [1])


class BothStates:
    """The same events to the engine's state and to the C++ one, each over a pool of its own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        page_size = self.random.randint(1, 4)
        n_tokens = None if self.random.random() < 0.2 else self.random.randint(8, 24) * page_size
        sizes = (self.random.randint(1, 5), 40, page_size, n_tokens)
        chunk = self.random.choice([0, self.random.randint(1, 12)])
        self.pools = (_C.PagePool(*sizes), _C.PagePool(*sizes))
        self.python: SchedulingState[Task] = SchedulingState(self.pools[0], chunk)
        self.cpp = second_module.SchedulingState(self.pools[1], chunk)
        self.tasks: list[Task] = []
        self.in_flight: list[tuple[StepGroup[Task], Any]] = []

    def submit(self) -> None:
        prompt = [self.random.randint(0, 1)] * self.random.randint(1, 45)
        namespace = self.random.choice(["", "", "other"])
        selection = self.random.randint(0, 1)
        max_tokens = self.random.choice([None, self.random.randint(1, 20)])
        waits = self.random.random() < 0.2
        room = generation_room(self.pools[0], len(prompt))
        assert second_module.generation_room(self.pools[1], len(prompt)) == room
        task_id = self.cpp.submit(prompt, namespace, selection, max_tokens, waits)
        assert task_id == len(self.tasks)
        task = Task(str(task_id), prompt, namespace, selection, max_tokens, waits)
        self.tasks.append(task)
        self.python.submit(task)

    def finish(self, task: Task) -> None:
        keeps_pages = self.random.random() < 0.8
        if task.status is not TaskStatus.FINISHED:
            self.python.finish(task, keeps_pages)
        self.cpp.finish(int(task.task_id), keeps_pages)

    def step(self) -> None:
        """Plan, with the last step complete or, where that is allowed, one ahead of it."""
        can_plan_ahead = self.python.can_plan_ahead()
        assert self.cpp.can_plan_ahead() == can_plan_ahead
        if not can_plan_ahead or self.random.random() < 0.5:
            self.complete()
        ours, theirs = self.python.plan(), self.cpp.plan()
        assert [as_dict(group) for group in ours.groups] == [g.as_dict() for g in theirs.groups]
        assert ids_of(ours.out_of_room) == theirs.out_of_room
        assert [(int(task.task_id), why) for task, why in ours.refused] == theirs.refused
        assert ids_of(ours.admitted) == theirs.admitted
        assert ids_of(self.python.running) == self.cpp.running()
        assert ids_of(list(self.python.waiting)) == self.cpp.waiting()
        assert self.python.n_preemptions == self.cpp.n_preemptions()
        assert self.python.has_work == self.cpp.has_work()
        self.complete()
        self.in_flight = list(zip(ours.groups, theirs.groups, strict=True))

    def complete(self) -> None:
        for ours, theirs in self.in_flight:
            token_ids = [self.random.randint(0, 1) for _ in range(ours.n_sampled)]
            ended = [i for i in range(ours.n_sampled) if self.random.random() < 0.1]
            self.python.complete(ours, token_ids, set(ended))
            self.cpp.complete(theirs, token_ids, ended)
            for i in ended:
                self.finish(ours.tasks[i])
        self.in_flight = []
        for pool in self.pools:
            pool.check_integrity()
        assert self.pools[0].stats() == self.pools[1].stats()


def as_dict(group: StepGroup[Task]) -> dict[str, Any]:
    return {
        "selection": group.selection,
        "task_ids": ids_of(group.tasks),
        "req_indices": group.req_indices,
        "starts": group.starts,
        "q_lens": group.q_lens,
        "n_sampled": group.n_sampled,
        "n_decode": group.n_decode,
    }


def ids_of(tasks: list[Task]) -> list[int]:
    return [int(task.task_id) for task in tasks]


def test_the_scheduling_state_decides_what_the_engines_decides() -> None:
    n_preemptions = n_refused = 0
    for seed in range(60):
        both = BothStates(seed)
        for _ in range(60):
            if both.random.random() < 0.4:
                both.submit()
            if both.tasks and both.random.random() < 0.1:
                both.finish(both.random.choice(both.tasks))
            both.step()
        n_preemptions += both.cpp.n_preemptions()
        n_refused += sum(len(task.token_ids) >= 40 for task in both.tasks)
    assert n_preemptions > 20
    assert n_refused > 50
