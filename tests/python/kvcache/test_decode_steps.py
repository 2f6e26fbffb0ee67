"""DecodeSteps against plan_step: the same step at fixed addresses, padded, step after step."""

from __future__ import annotations

import random

import pytest
import torch

from astrai.kvcache import DecodeSteps, HostStaging, PagePool, StepBatch


def make_pool(prompts: list[list[int]]) -> tuple[PagePool, list[int]]:
    sizes = (len(prompts) + 1, 4096, "cpu", torch.float32, 16, 16 * 1200)
    pool = PagePool(1, 2, 8, *sizes, n_heads=4)
    rows = []
    for prompt in prompts:
        rows.append(pool.admit(prompt).req_idx)
        pool.commit(rows[-1], len(prompt) - 1)
    return pool, rows


def units(batch: StepBatch) -> list[tuple[list[list[int]], int]]:
    """(members, split) of each unit."""
    cache = batch.kv_cache
    members, listed = cache.decode_members.tolist(), cache.decode_units.tolist()
    return [
        (members[first : first + word % 256], word // 256)
        for first, word in listed[: int(cache.decode_n_units[0])]
    ]


@pytest.mark.parametrize("n_shared", [0, 1500])
def test_a_fixed_step_is_the_planned_one(n_shared):
    rng = random.Random(n_shared)
    prompts = [[1] * n_shared + [10 + i] * rng.randint(5, 700) for i in range(5)]
    pool, rows = make_pool(prompts)
    steps, staging = DecodeSteps(pool, n_extra=3), HostStaging(pool.device)
    seen = set()

    for n in (5, 3, 5, 2, 4):
        starts = [len(prompt) - 1 for prompt in prompts[:n]]
        staged = steps.stage(rows[:n], starts, n, staging)
        staged.extra.copy_(torch.arange(3 * n))
        steps.send(staged)

        fixed, planned = staged.fixed.batch, pool.plan_step(rows[:n], starts, [1] * n)
        assert staged.fixed.extra.tolist() == list(range(3 * n))
        assert fixed.input_ids.tolist() == planned.input_ids.tolist()
        for name in ("req_pool_indices", "kv_indptr", "out_cache_loc", "decode_split_indptr"):
            assert torch.equal(getattr(fixed.kv_cache, name), getattr(planned.kv_cache, name))
        assert units(fixed) == units(planned)
        assert fixed.kv_cache.decode_stack_len == (8 if n_shared else 1)
        assert fixed.is_decode and fixed.kv_cache.n_decode == n
        assert fixed.kv_cache.decode_units.data_ptr() % 16 == 0
        seen.add(fixed.kv_cache.decode_units.data_ptr())
    assert len(seen) == 4  # one address for each number of rows


def test_a_step_that_is_not_sent_leaves_its_table_entries_to_the_next():
    pool, rows = make_pool([[1] * 9, [2] * 40, [3] * 70])
    table = pool.table
    padding = torch.full((1, 4096), pool.host.reserved_slot, dtype=torch.int32)
    table._is_alias, table.device = False, torch.cat([torch.zeros_like(table.host), padding])
    steps, staging = DecodeSteps(pool, n_extra=1), HostStaging(pool.device)

    steps.stage(rows[:1], [8], 1, staging)  # takes the entries of all, and the caller fails
    with pytest.raises(ValueError, match="start"):
        steps.stage(rows[:1], [-1], 1, staging)
    pool.extend(rows[1], 60)
    steps.send(steps.stage(rows[1:], [39, 69], 2, staging))

    for row, n in zip(rows, (9, 60, 70), strict=True):
        assert torch.equal(table.device[row, :n], table.host[row, :n])
    assert torch.equal(table.device[-1:], padding)


def test_padding_rows_have_a_unit_each():
    pool, rows = make_pool([[1] * 600, [2] * 9])
    steps = DecodeSteps(pool, n_extra=1)

    staged = steps.stage(rows, [599, 8], 3, HostStaging(pool.device))
    steps.send(staged)

    padding = pool.host.max_batch_size
    assert units(staged.fixed.batch) == [
        ([[0, rows[0], 600, 0]], 0),
        ([[0, rows[0], 600, 0]], 1),
        ([[1, rows[1], 9, 2]], 0),
        ([[2, padding, 1, 3]], 0),
    ]


def test_there_is_room_for_requests_of_the_whole_context():
    text = list(range(4000))
    pool, rows = make_pool([[*text, 9000 + i] for i in range(3)])
    steps = DecodeSteps(pool, n_extra=1)

    staged = steps.stage(rows, [4000] * 3, 3, HostStaging(pool.device))

    assert staged.fixed.batch.kv_cache.decode_stack_len == 8
    assert len(staged.fixed.batch.kv_cache.decode_units) >= 3 * 8


def test_steps_of_as_many_rows_take_the_same_room_whatever_their_lengths():
    pool, rows = make_pool([[1] * 3000, [2] * 9])
    steps, staging = DecodeSteps(pool, n_extra=1), HostStaging(pool.device, 1 << 20)
    behind = set()

    for start in (20, 1500, 2999):
        steps.stage(rows, [start, 8], 2, staging)
        behind.add(staging.take(1, torch.int32).data_ptr())
        staging.reset()

    assert len(behind) == 1
