"""attn_paged_prefill at its limits: many and long requests, any small pair of lengths, large
tables, slots in runs, parts that are merged. All need a GPU. T..: see test_attn_paged_prefill.py.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from paged_prefill_case import PrefillCase, assert_right, make_case, reference

pytestmark = pytest.mark.gpu

HEAD_DIMS = (32, 64, 96, 128, 256)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_T12_any_pair_of_lengths_ends_with_the_right_result(head_dim: int, is_causal: bool) -> None:
    generator = random.Random(head_dim)
    for seed in range(8):
        q_lens = [generator.randrange(301) for _ in range(40)]
        kv_lens = [generator.randrange(301) for _ in range(40)]
        case = make_case(q_lens, kv_lens, 4, 2, head_dim, seed=seed, is_causal=is_causal)

        assert_right(case, case.run())


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("chunk", [64, 512, 777])
def test_T35_a_prompt_has_the_same_bits_whole_and_in_chunks_among_others(
    head_dim: int, chunk: int
) -> None:
    case = make_case([3000, 31], [3000, 31], 8, 2, head_dim)
    whole = case.only(0).run()
    other = make_case([200, 1, 90], [4000, 700, 90], 8, 2, head_dim, seed=1)

    for first in range(0, 3000, chunk):
        part = case.only(0, first, min(chunk, 3000 - first))
        own = whole[first : first + part.q_lens[0]]
        assert torch.equal(part.run(), own)
        assert torch.equal(beside(part, other).run()[: len(own)], own)


def beside(first: PrefillCase, second: PrefillCase) -> PrefillCase:
    """One batch of both, over one pool and one table."""
    n_slots, width = len(first.k_cache), max(first.table.shape[1], second.table.shape[1])
    n_rows = first.table.shape[0]
    table = first.table.new_zeros(n_rows + second.table.shape[0], width)
    table[:n_rows, : first.table.shape[1]] = first.table
    is_slot = second.table < len(second.k_cache)
    table[n_rows:, : second.table.shape[1]] = torch.where(is_slot, second.table + n_slots, 0)
    return dataclasses.replace(
        first,
        q=torch.cat([first.q, second.q]),
        k_cache=torch.cat([first.k_cache, second.k_cache]),
        v_cache=torch.cat([first.v_cache, second.v_cache]),
        table=table,
        rows=torch.cat([first.rows, second.rows + n_rows]),
        q_lens=first.q_lens + second.q_lens,
        kv_lens=first.kv_lens + second.kv_lens,
    )


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_more_tiles_than_the_lists_of_one_wave_hold_are_all_done(head_dim: int) -> None:
    generator = random.Random(0)
    q_lens = [generator.randrange(1, 4) for _ in range(420)]
    kv_lens = [q_len + generator.randrange(200) for q_len in q_lens]
    case = make_case(q_lens, kv_lens, 16, 16, head_dim)

    assert_right(case, case.run())


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("n_requests", [16, pytest.param(3, id="few")])
def test_T49_short_rows_behind_a_long_context(head_dim: int, n_requests: int) -> None:
    q_lens = list(range(1, n_requests + 1))
    case = make_case(q_lens, [2000 + 37 * q_len for q_len in q_lens], 14, 2, head_dim)

    assert_right(case, case.run())


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("window", [1, 80, 128, 129])
def test_T53_tiles_that_a_row_does_not_see_leave_no_trace(head_dim: int, window: int) -> None:
    case = make_case([700, 65, 1], [1500, 65, 400], 4, 1, head_dim, window=window)

    assert_right(case, case.run())


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_a_context_of_131072_is_right_and_does_not_depend_on_the_chunk(head_dim: int) -> None:
    case = make_case([70], [131072], 4, 1, head_dim)
    out = case.run()

    assert_right(case, out)
    assert torch.equal(case.only(0, 69, 1).run(), out[69:])


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_T13_runs_of_slots_of_any_length_have_the_bits_of_scattered_ones(head_dim: int) -> None:
    generator = random.Random(1)
    case = make_case([400], [900], 4, 2, head_dim)
    expected = case.run()
    row = case.table[case.rows[0].long()]
    old = row[:900].long()
    runs, first = [], 0  # of random lengths, which swap places
    while first < 900:
        length = generator.choice([1, 7, 8, 31, 32, 33, 127, 128, 129, 200])
        runs.append(range(first, min(first + length, 900)))
        first += length
    generator.shuffle(runs)
    new = torch.empty_like(old)
    position = 0
    for run in runs:
        new[list(run)] = torch.arange(position, position + len(run), device=new.device)
        position += len(run)
    moved = {name: torch.full_like(getattr(case, name), float("nan")) for name in CACHES}
    for name, cache in moved.items():
        cache[new] = getattr(case, name)[old]
    table = case.table.clone()
    table[case.rows[0].long(), :900] = new.to(torch.int32)

    assert torch.equal(dataclasses.replace(case, table=table, **moved).run(), expected)


CACHES = ("k_cache", "v_cache")


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_T20_parts_merge_by_their_natural_logarithms(head_dim: int) -> None:
    case = make_case([1], [1000], 4, 2, head_dim, is_causal=False)
    slots = case.table[case.rows[0].long()]
    parts = []
    for begin, end in ((0, 333), (333, 1000)):
        table = torch.full_like(case.table, 0)
        table[case.rows[0].long(), : end - begin] = slots[begin:end]
        part = dataclasses.replace(case, table=table, kv_lens=[end - begin])
        lse = torch.full(case.q.shape[:2], float("nan"), device="cuda")
        parts.append((part.run(lse=lse).double(), lse.double()))
    (left, left_lse), (right, right_lse) = parts

    lse = torch.logaddexp(left_lse, right_lse)
    merged = left * (left_lse - lse).exp()[..., None] + right * (right_lse - lse).exp()[..., None]

    expected, expected_lse = reference(case)
    assert (merged - expected).norm() / expected.norm() <= 4e-3
    torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("head_dim", [96, 128])
def test_T28_rows_of_a_table_of_more_than_two_to_the_31_entries_are_reached(head_dim: int) -> None:
    case = make_case([60], [150], 2, 1, head_dim)
    width = 2**27
    table = torch.empty(18, width, dtype=torch.int32, device="cuda")
    table[17, :150] = case.table[case.rows[0].long(), :150]
    last_row = torch.tensor([17], dtype=torch.int32, device="cuda")

    assert torch.equal(dataclasses.replace(case, table=table, rows=last_row).run(), case.run())


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_T10_a_table_without_a_column_too_many_is_enough(head_dim: int) -> None:
    case = make_case([130, 200], [130, 200], 4, 2, head_dim)
    exact = case.table[:, :200].contiguous()
    last = torch.tensor([0, len(exact) - 1], dtype=torch.int32, device="cuda")
    table = exact.clone()
    table[last.long()] = exact[case.rows.long()]

    assert_right(case, dataclasses.replace(case, table=table, rows=last).run())
