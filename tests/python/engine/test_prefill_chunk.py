"""What a step may compute of prompts, against sums over single tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai.engine.prefill_chunk import PrefillChunk, affordable_tokens

COSTS = st.integers(0, 50)


def cost_of(n_tokens: int, token_cost: float, pair_cost: float, start: int) -> float:
    return sum(token_cost + pair_cost * (start + i + 0.5) for i in range(n_tokens))


@given(st.integers(-5, 5000), COSTS, COSTS, st.integers(0, 200))
def test_no_token_more_than_the_cost_allows_and_no_fewer(
    cost: int, token_cost: int, pair_cost: int, start: int
) -> None:
    n = affordable_tokens(cost, token_cost, pair_cost, start)
    if token_cost == pair_cost == 0:
        assert n == (0 if cost <= 0 else 1 << 30)
        return
    assert cost_of(n, token_cost, pair_cost, start) <= max(0, cost) + 1e-6
    assert cost_of(n + 1, token_cost, pair_cost, start) > cost - 1e-6


@given(
    st.integers(1, 64),
    st.integers(0, 64),
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 100)), max_size=6),
    st.booleans(),
)
def test_a_step_stays_within_tokens_and_cost_but_for_its_first_tokens(
    least: int, more: int, prompts: list[tuple[int, int]], is_awaited: bool
) -> None:
    """prompts: (start, tokens left) of each."""
    chunk = PrefillChunk(least, least + more, cost=900.0, token_cost=10.0, pair_cost=0.5)
    budget = chunk.budget([n for _, n in prompts], is_awaited)
    n_tokens, cost = budget.n_tokens, budget.cost
    assert least <= n_tokens <= least + more
    assert cost == pytest.approx(900 * n_tokens / least)
    assert is_awaited or n_tokens == chunk.most
    taken, paid = [], 0.0
    for start, wanted in prompts:
        n = budget.most(start, wanted)
        budget.take(start, n)
        taken.append(n)
        paid += cost_of(n, 10.0, 0.5, start)
    assert all(0 <= n <= wanted for n, (_, wanted) in zip(taken, prompts, strict=True))
    assert sum(taken) <= n_tokens
    if prompts:
        assert taken[0] >= min(16, prompts[0][1], n_tokens)
    assert paid <= cost + 1e-6 or sum(taken) <= 16


def test_far_behind_the_beginning_chunks_are_smaller() -> None:
    """Attention of Llama-3.1-8B at 100 000 keys takes three times as long as the products."""
    llama = PrefillChunk(1024, 4096, cost=18e12, token_cost=16e9, pair_cost=4 * 32 * 4096)
    sizes = [llama.budget([100_000], True).most(start, 4096) for start in (0, 20_000, 100_000)]
    assert sizes[0] == 1024
    assert 600 < sizes[1] < 800
    assert 200 < sizes[2] < 300


@pytest.mark.parametrize(
    ("uncomputed", "n_tokens"),
    [([], 10), ([1000], 10), ([10] * 4, 10), ([10] * 8, 20), ([10] * 100, 40), ([5] * 8, 10)],
)
def test_a_crowd_makes_larger_steps_and_one_long_prompt_does_not(
    uncomputed: list[int], n_tokens: int
) -> None:
    assert PrefillChunk(10, 40).budget(uncomputed, is_awaited=True).n_tokens == n_tokens


def test_a_fixed_number_holds_whatever_waits() -> None:
    chunk = PrefillChunk.fixed(7)
    assert chunk is not None
    assert chunk.budget([100] * 100, is_awaited=False).most(10**6, 100) == 7
    assert chunk.budget([], is_awaited=True).cost == math.inf
    assert PrefillChunk.fixed(None) is PrefillChunk.fixed(0) is None
