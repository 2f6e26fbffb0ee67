"""The scheduling decisions under the simulator: outputs, order, budget, progress."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import VOCAB_SIZE, SimTask, Simulator, expected_output

from astrai import _C
from astrai.engine.plan import StepPlan
from astrai.engine.prefill_chunk import PrefillChunk
from astrai.engine.scheduling_state import SchedulingState, generation_room
from astrai.engine.task import Task

POOLS = {
    "contiguous": lambda: _C.PagePool(4, 64),
    "paged": lambda: _C.PagePool(6, 64, 4, 256),
    "paged_tokens": lambda: _C.PagePool(6, 64, 1, 150),
    "tight": lambda: _C.PagePool(6, 64, 4, 96),
    "tiny": lambda: _C.PagePool(4, 40, 4, 40),
}


def random_prompt(simulator: Simulator, longest: int) -> list[int]:
    """Often a beginning of one of two long texts, so that prefixes are shared."""
    rng = simulator.random
    base = [(i * i + rng.randrange(2)) % VOCAB_SIZE if i == 0 else i % 7 for i in range(longest)]
    n_shared = rng.randrange(longest)
    n_own = rng.randrange(1, 1 + longest - n_shared)
    return base[:n_shared] + [rng.randrange(VOCAB_SIZE) for _ in range(n_own)]


@pytest.mark.parametrize("pool_name", POOLS)
@pytest.mark.parametrize("prefill_chunk", [1, 7, PrefillChunk(2, 11), None])
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_task_generates_what_it_generates_alone(
    pool_name: str, prefill_chunk: PrefillChunk | int | None, is_ahead: bool, seed: int
) -> None:
    simulator = Simulator(POOLS[pool_name](), seed, prefill_chunk, is_ahead)
    rng = simulator.random
    longest = min(simulator.pool.max_seq_len, simulator.pool.n_tokens) // 2
    for _ in range(60):
        for _ in range(rng.randrange(3)):
            prompt_ids = random_prompt(simulator, longest)
            room = generation_room(simulator.pool, len(prompt_ids))
            namespace = rng.choice(["", "", "other"])
            n_wanted = rng.randint(1, min(room, longest))
            simulator.submit(prompt_ids, n_wanted, namespace, knows_end=rng.random() < 0.5)
        if rng.random() < 0.15:
            simulator.cancel(rng.choice(simulator.tasks or [simulator.submit([1], 1)]))
        simulator.step()
    simulator.run()
    simulator.check_outputs()
    simulator.check_all_given_back()
    assert simulator.first_admissions == sorted(simulator.first_admissions)
    assert not simulator.out_of_room, "every task was clamped to the room"
    if pool_name == "tight":
        assert simulator.state.n_preemptions > 0
    if pool_name in ("paged", "tight"):
        assert simulator.state.n_prefix_hit_tokens > 0
    assert (simulator.n_planned_ahead > 50) is is_ahead
    assert (simulator.n_wasted > 0) is is_ahead


@pytest.mark.parametrize("pool_name", POOLS)
@pytest.mark.parametrize("prefill_chunk", [5, None])
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_text_that_outgrows_its_keys_is_computed_again(
    pool_name: str, prefill_chunk: int | None, is_ahead: bool, seed: int
) -> None:
    pool = POOLS[pool_name]()
    longest = min(pool.max_seq_len, pool.n_tokens) // 2
    simulator = Simulator(pool, seed, prefill_chunk, is_ahead, switch_len=longest)
    rng = simulator.random
    for _ in range(40):
        for _ in range(rng.randrange(3)):
            prompt_ids = random_prompt(simulator, longest + 4)
            room = generation_room(pool, len(prompt_ids))
            simulator.submit(prompt_ids, rng.randint(1, min(room, longest)))
        simulator.step()
    simulator.run()
    simulator.check_outputs()
    simulator.check_all_given_back()
    assert not simulator.out_of_room, "every task was clamped to the room"
    crossed = [t for t in simulator.tasks if len(t.prompt_ids) <= longest < len(t.token_ids)]
    assert crossed, "no text became a long one"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_mix_of_events_ends_with_right_outputs_and_an_empty_pool(
    data: st.DataObject,
) -> None:
    page_size = data.draw(st.integers(1, 5), label="page_size")
    n_pages = data.draw(st.integers(4, 20), label="n_pages")
    n_rows = data.draw(st.integers(1, 5), label="n_rows")
    pool = _C.PagePool(n_rows, 48, page_size, n_pages * page_size)
    chunk = data.draw(
        st.one_of(
            st.none(),
            st.integers(1, 9),
            st.builds(PrefillChunk, st.integers(1, 5), st.integers(5, 12)),
        ),
        label="prefill_chunk",
    )
    is_ahead = data.draw(st.booleans(), label="is_ahead")
    switch_len = data.draw(st.one_of(st.none(), st.integers(1, 14)), label="switch_len")
    simulator = Simulator(pool, 0, chunk, is_ahead, switch_len=switch_len)
    for _ in range(data.draw(st.integers(1, 25), label="n_events")):
        event = data.draw(st.sampled_from(["submit", "submit", "step", "step", "cancel"]))
        if event == "submit":
            prompt_ids = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
            room = generation_room(pool, len(prompt_ids))
            if room >= 1:
                n_wanted = data.draw(st.integers(1, min(room, 30)))
                simulator.submit(prompt_ids, n_wanted, knows_end=data.draw(st.booleans()))
        elif event == "cancel" and simulator.tasks:
            simulator.cancel(data.draw(st.sampled_from(simulator.tasks)))
        else:
            simulator.step()
    simulator.run()
    simulator.check_outputs()
    simulator.check_all_given_back()
    assert not simulator.out_of_room


def test_a_task_that_fills_its_room_exactly_is_not_cut_short() -> None:
    pool = _C.PagePool(1, 64, 4, 16)
    simulator = Simulator(pool, 0, None)
    task = simulator.submit([1, 2, 3], generation_room(pool, 3))
    simulator.run()
    assert task.output_ids == expected_output([1, 2, 3], 14)  # 16 slots, the last id unwritten


def test_a_lone_task_that_exhausts_the_pool_ends_instead_of_looping() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 16), 0, None)
    task = simulator.submit([1, 2, 3], n_wanted=40)
    simulator.run(max_steps=100)
    assert simulator.out_of_room == [task]
    assert task.output_ids == expected_output([1, 2, 3], 14)
    simulator.check_all_given_back()


def test_a_task_at_the_end_of_the_context_ends_and_preempts_nobody() -> None:
    simulator = Simulator(_C.PagePool(2, 8, 1, 64), 0, None)
    ended = simulator.submit([1, 2, 3, 4, 5], n_wanted=40)
    simulator.submit([1, 2], n_wanted=6)
    simulator.run(max_steps=100)
    assert simulator.out_of_room == [ended]
    assert ended.output_ids == expected_output([1, 2, 3, 4, 5], 4)
    assert simulator.state.n_preemptions == 0
    simulator.check_all_given_back()


def test_a_warm_cache_does_not_shorten_a_task_that_fills_the_pool() -> None:
    """The task recomputes its last prompt page, whose twin in the tree it then holds as well."""
    simulator = Simulator(_C.PagePool(1, 48, 2, 22), 0, None)
    simulator.submit([0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1], n_wanted=2)
    simulator.run()
    task = simulator.submit([0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1], n_wanted=10)
    simulator.run()
    assert task.output_ids == expected_output(task.prompt_ids, 10)


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    simulator = Simulator(_C.PagePool(4, 64, 4, 32), 0, None)
    first = simulator.submit([1] * 12, n_wanted=10)
    simulator.step()
    big = simulator.submit([2] * 24, n_wanted=2)
    small = simulator.submit([3], n_wanted=1)
    n_waited = 0
    while not big.is_admitted:
        simulator.step()
        assert big.is_admitted or not small.is_admitted
        n_waited += 1
    assert n_waited > 1
    simulator.run()
    assert first.output_ids == expected_output([1] * 12, 10)
    simulator.check_outputs()


def test_running_tasks_decode_in_every_step_beside_a_long_prompt() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 128), 0, prefill_chunk=4)
    short = simulator.submit([1], n_wanted=12)
    simulator.step()
    simulator.submit([2] * 40, n_wanted=1)
    for n_output in range(2, 12):
        simulator.step()
        assert len(short.output_ids) == n_output


def test_the_youngest_task_is_preempted_and_continues_where_it_was() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 32), 0, None)
    old = simulator.submit([1] * 8, n_wanted=14)
    young = simulator.submit([2] * 8, n_wanted=14)
    simulator.run()
    assert (old.n_preemptions, young.n_preemptions > 0) == (0, True)
    simulator.check_outputs()


def test_a_finished_prompt_is_reused_under_its_namespace_only() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 128), 0, None)
    simulator.submit([5] * 13, n_wanted=2)
    simulator.run()
    same = simulator.submit([5] * 13, n_wanted=1)
    other = simulator.submit([5] * 13, n_wanted=1, namespace="other")
    simulator.run()
    assert (same.n_cached, other.n_cached) == (12, 0)


def test_a_completed_chunk_can_be_matched_before_its_prompt_is_done() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 128), 0, prefill_chunk=8)
    simulator.submit([5] * 30, n_wanted=1)
    simulator.step()
    follower = simulator.submit([5] * 24 + [6] * 6, n_wanted=1)
    simulator.run()
    assert follower.n_cached == 24  # it comes in beside the last chunk
    simulator.check_outputs()


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("chunk", [8, PrefillChunk(8, 32)], ids=str)
def test_prompts_with_a_common_beginning_compute_it_once(
    is_ahead: bool, chunk: PrefillChunk | int
) -> None:
    """All come at once; the first writes the beginning, and the others wait until they find it."""
    simulator = Simulator(_C.PagePool(8, 64, 4, 512), 0, chunk, is_ahead)
    tasks = [simulator.submit([5] * 16 + [i, i, i, i], n_wanted=1) for i in range(8)]
    simulator.run()
    simulator.check_outputs()
    assert sum(20 - task.n_cached for task in tasks) == 20 + 7 * 4


def test_untrusted_pages_do_not_enter_the_prefix_tree() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 128), 0, None)
    task = simulator.submit([5] * 9, n_wanted=9)
    plan = simulator.state.plan()
    simulator.state.complete(plan.groups[0], [0], ended={0})
    simulator.state.finish(task, keep_pages=False)
    simulator.state.cleanup()
    assert simulator.pool.n_cached_pages == 0
    simulator.check_all_given_back()


def test_of_an_untrusted_task_the_chunks_that_were_complete_stay_in_the_prefix_tree() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 128), 0, 8)
    task = simulator.submit([5] * 30, n_wanted=1)
    simulator.step()
    simulator.step()
    simulator.state.plan()  # a third chunk, which fails
    simulator.state.finish(task, keep_pages=False)
    simulator.state.cleanup()
    assert simulator.pool.n_cached_pages == 16 // 4
    simulator.check_all_given_back()


def test_a_prompt_that_the_pool_refuses_leaves_the_others_alone() -> None:
    state: SchedulingState[Task] = SchedulingState(_C.PagePool(2, 64, 4, 16), None)
    hopeless, fine = Task("hopeless", [1] * 40), Task("fine", [1])
    state.submit(hopeless)
    state.submit(fine)
    plan = state.plan()
    assert [task for task, _ in plan.refused] == [hopeless]
    assert [group.tasks for group in plan.groups] == [[fine]]


def test_tasks_of_different_selections_run_in_separate_groups() -> None:
    state: SchedulingState[Task] = SchedulingState(_C.PagePool(4, 64), None)
    for i, selection in enumerate(["a", "b", "a"]):
        state.submit(Task(f"t{i}", [1, 2], selection=selection))
    groups = state.plan().groups
    assert [(group.selection, len(group.tasks)) for group in groups] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(("n_prompt", "room"), [(1, 16), (15, 2), (16, 1), (17, 0)])
def test_room_is_what_the_pool_can_hold_and_one_unwritten_token(n_prompt: int, room: int) -> None:
    assert generation_room(_C.PagePool(2, 64, 4, 16), n_prompt) == room


@pytest.mark.parametrize(("n_prompt", "room"), [(1, 63), (63, 1), (64, 0)])
def test_room_is_what_the_context_leaves(n_prompt: int, room: int) -> None:
    assert generation_room(_C.PagePool(2, 64), n_prompt) == room


def test_a_task_that_ends_unforeseen_costs_one_row_of_one_step_and_a_foreseen_end_none() -> None:
    for knows_end, n_wasted in ((False, 1), (True, 0)):
        simulator = Simulator(_C.PagePool(2, 64, 4, 128), 0, None, is_ahead=True)
        task = simulator.submit([1, 2, 3], n_wanted=9, knows_end=knows_end)
        task.waits_for_tokens = False
        simulator.run()
        assert task.output_ids == expected_output([1, 2, 3], 9)
        assert simulator.n_wasted == n_wasted
        assert simulator.n_planned_ahead >= 8


def test_a_task_that_waits_for_its_tokens_lets_the_others_go_on() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 128), 0, None, is_ahead=True)
    waiting, other = (simulator.submit([i, 2], n_wanted=20, knows_end=True) for i in (1, 2))
    waiting.waits_for_tokens, other.waits_for_tokens = True, False
    for _ in range(12):
        simulator.step()
    assert (len(waiting.output_ids), len(other.output_ids)) == (6, 11)
    simulator.run()
    simulator.check_outputs()


def test_tasks_that_wait_get_a_token_in_every_step_where_they_are_most() -> None:
    simulator = Simulator(_C.PagePool(4, 64, 4, 256), 0, None, is_ahead=True)
    tasks = [simulator.submit([i, 2], n_wanted=20, knows_end=True) for i in range(3)]
    for task in tasks:
        task.waits_for_tokens = task is not tasks[0]
    for _ in range(12):
        simulator.step()
    assert {len(task.output_ids) for task in tasks} == {11}
    simulator.run()
    simulator.check_outputs()


def test_a_pool_without_room_for_the_next_tokens_is_not_planned_ahead() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 8), 0, None, is_ahead=True)
    simulator.submit([1, 2, 3], n_wanted=30)
    seen = []
    for _ in range(6):
        simulator.step()
        seen.append(simulator.state.can_plan_ahead())
    assert seen == [True, True, True, True, True, False]


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("pool", [(8, 64), (8, 64, 1, 512)], ids=["contiguous", "page of one"])
def test_equal_prompts_do_not_wait_where_nothing_is_shared(
    pool: tuple[int, ...], is_ahead: bool
) -> None:
    n_steps = []
    for prompts in ([[5] * 6] * 8, [[i] * 6 for i in range(8)]):
        simulator = Simulator(_C.PagePool(*pool), 0, 8)
        simulator.is_ahead = is_ahead
        for prompt_ids in prompts:
            simulator.submit(prompt_ids, n_wanted=1, knows_end=True)
        n_steps.append(simulator.run())
    assert n_steps[0] == n_steps[1]


def test_prompts_that_cannot_come_in_make_no_larger_chunks() -> None:
    simulator = Simulator(_C.PagePool(2, 64, 4, 512), 0, PrefillChunk(4, 24))
    simulator.submit([7] * 3, n_wanted=60)
    simulator.step()
    for i in range(60):
        simulator.submit([i % 7, i // 7, 1, 2] * 10, n_wanted=1)
    assert max(prompt_tokens(simulator.step()) for _ in range(20)) == 4


def test_a_prompt_does_not_wait_for_pages_of_another_namespace() -> None:
    simulator = Simulator(_C.PagePool(4, 64, 4, 512), 0, 8)
    simulator.submit([5] * 30, n_wanted=1)
    simulator.step()
    simulator.step()
    simulator.step()
    other = simulator.submit([5] * 30, n_wanted=1, namespace="other")
    simulator.step()
    assert other.n_planned > 0
    simulator.run()
    simulator.check_outputs()


def test_more_waiting_prompts_make_larger_chunks() -> None:
    """Between the bounds a quarter of what waits, of which a long prompt is no more than the lower
    bound; all that a step may hold while nobody waits for a next token."""
    simulator = Simulator(_C.PagePool(64, 64, 4, 4096), 0, PrefillChunk(4, 24))
    simulator.submit([7] * 30, n_wanted=40)
    assert [prompt_tokens(simulator.step()) for _ in range(2)] == [24, 6]
    left = [48] + [6] * 40
    for i, n_prompt in enumerate(left):
        simulator.submit([i % 7, i // 7] * (n_prompt // 2), n_wanted=1)
    sizes = []
    while left:
        most = min(24, max(4, sum(min(n, 4) for n in left) // 4))
        sizes.append(prompt_tokens(simulator.step()))
        assert sizes[-1] <= most
        assert sizes[-1] == most or sum(left) < most
        n = sizes[-1]
        while n:
            taken = min(n, left[0])
            n -= taken
            left[0] -= taken
            if left[0] == 0:
                del left[0]
    assert (max(sizes), sizes[-2]) == (24, 4)
    simulator.run()
    simulator.check_outputs()


def prompt_tokens(plan: StepPlan[SimTask]) -> int:
    return sum(sum(group.q_lens[group.n_decode :]) for group in plan.groups)
