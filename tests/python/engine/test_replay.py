"""The scheduling state where a position must always be computed in the same way.

The simulator's pretended device tells decoded tokens from those of a prompt: one that is computed
in the other way, or read from a page that was written in the other way, changes the outputs.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import VOCAB_SIZE, Simulator

from astrai import _C
from astrai.engine.scheduling_state import generation_room

POOLS = {
    "contiguous": lambda: _C.PagePool(4, 64),
    "paged": lambda: _C.PagePool(6, 64, 4, 256),
    "paged_tokens": lambda: _C.PagePool(6, 64, 1, 150),
    "tight": lambda: _C.PagePool(6, 64, 4, 96),
}


def prompt_of(simulator: Simulator, longest: int) -> list[int]:
    """Often the beginning of a text that was generated before, so that decoded pages would hit."""
    rng = simulator.random
    told = [task.prompt_ids + task.output_ids for task in simulator.tasks if task.output_ids]
    base = rng.choice(told) if told else []
    own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 5))]
    return base[: rng.randrange(longest - 4)] + own


@pytest.mark.parametrize("pool_name", POOLS)
@pytest.mark.parametrize("prefill_chunk", [3, None])
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_token_is_computed_in_its_own_way_whatever_happens(
    pool_name: str, prefill_chunk: int | None, is_ahead: bool, seed: int
) -> None:
    simulator = Simulator(
        POOLS[pool_name](), seed, prefill_chunk, is_ahead, is_batch_invariant=True
    )
    rng = simulator.random
    longest = min(simulator.pool.max_seq_len, simulator.pool.n_tokens) // 2
    for _ in range(60):
        for _ in range(rng.randrange(3)):
            prompt_ids = prompt_of(simulator, longest)
            room = generation_room(simulator.pool, len(prompt_ids))
            n_wanted = rng.randint(1, min(room, longest))
            simulator.submit(prompt_ids, n_wanted, knows_end=rng.random() < 0.5)
        simulator.step()
    simulator.run()
    simulator.check_outputs()
    simulator.check_all_given_back()
    assert not simulator.out_of_room
    if pool_name == "tight":
        assert simulator.n_replayed > 0
    if pool_name in ("paged", "tight"):
        assert simulator.state.n_prefix_hit_tokens > 0


@settings(max_examples=60, deadline=None)
@given(
    n_pages=st.integers(6, 30),
    page_size=st.sampled_from([1, 2, 4]),
    chunk=st.sampled_from([1, 5, None]),
    is_ahead=st.booleans(),
    switches=st.booleans(),
    loads=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 14)), min_size=1, max_size=12),
)
def test_any_load_on_a_tight_pool_replays_to_the_same_outputs(
    n_pages: int,
    page_size: int,
    chunk: int | None,
    is_ahead: bool,
    switches: bool,
    loads: list[tuple[int, int]],
) -> None:
    pool = _C.PagePool(4, 48, page_size, n_pages * page_size)
    simulator = Simulator(
        pool, 0, chunk, is_ahead, switch_len=9 if switches else None, is_batch_invariant=True
    )
    for i, (n_prompt, n_wanted) in enumerate(loads):
        room = generation_room(pool, n_prompt)
        if room >= 1:
            prompt_ids = [(i % 3 + j) % VOCAB_SIZE for j in range(n_prompt)]
            simulator.submit(prompt_ids, min(n_wanted, room), knows_end=i % 2 == 0)
        simulator.step()
    simulator.run()
    simulator.check_outputs()
    simulator.check_all_given_back()


def test_a_preempted_task_replays_its_tokens_one_in_a_step_and_draws_after_the_last() -> None:
    pool = _C.PagePool(2, 64, 4, 32)
    simulator = Simulator(pool, 0, None, is_batch_invariant=True)
    simulator.submit([1] * 8, 20)
    young = simulator.submit([2] * 8, 12)
    while young.n_preemptions == 0 and simulator.state.has_work:
        simulator.step()
    n_told = len(young.output_ids)
    assert n_told > 2
    drawn = []
    while len(young.output_ids) == n_told:
        plan = simulator.step()
        groups = [group for group in plan.groups if young in group.tasks]
        drawn += [(group.is_replay, group.n_sampled) for group in groups]
    assert drawn == [(False, 0)] + [(True, 0)] * (n_told - 1) + [(True, 1)]
    simulator.run()
    simulator.check_outputs()


def test_pages_of_generated_tokens_do_not_enter_the_prefix_tree() -> None:
    for is_batch_invariant, n_hit in ((False, 12), (True, 8)):
        pool = _C.PagePool(2, 64, 4, 128)
        simulator = Simulator(pool, 0, None, is_batch_invariant=is_batch_invariant)
        first = simulator.submit([1] * 8, 6)
        simulator.run()
        simulator.submit(first.prompt_ids + first.output_ids, 1)
        simulator.run()
        assert simulator.state.n_prefix_hit_tokens == n_hit
