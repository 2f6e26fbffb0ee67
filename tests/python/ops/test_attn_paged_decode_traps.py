"""attn_paged_decode where kernels of this kind are known to have failed, one test each."""

from __future__ import annotations

import math

import pytest
import torch
from test_attn_paged_decode import Batch, assert_matches, decode, expected, make_batch
from torch import Tensor

from astrai.extension import ops

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


def one_of(batch: Batch, i: int) -> Batch:
    """The i-th request alone, over the same pool."""
    own = slice(i, i + 1)
    assert batch.new_k is not None and batch.new_v is not None
    return Batch(
        batch.q[own],
        batch.k_cache,
        batch.v_cache,
        batch.table,
        batch.rows[own],
        batch.lens[own],
        batch.keys[own],
        batch.values[own],
        batch.slots[own],
        batch.new_k[own],
        batch.new_v[own],
    )


@pytest.mark.parametrize("lens", [[0], [0, 70, 600], [70, 0, 600], [70, 600, 0], [0, 0]], ids=str)
def test_a_request_without_kv_is_zero_wherever_it_stands(lens: list[int]) -> None:
    batch = make_batch(lens)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    assert_matches(batch, decode(batch, lse=lse), lse)


@pytest.mark.parametrize("n_extra", [1, 2, 5, 20])
def test_splits_without_tokens_have_no_weight_in_the_merge(n_extra: int) -> None:
    """The plan may give a request more splits than its tokens fill."""
    batch = make_batch([0, 1, 511, 512, 600])
    splits = [max(1, -(-length // 512)) + n_extra for length in batch.lens]
    split_indptr = torch.tensor([0, *splits], device="cuda").cumsum(0).int()
    n = sum(splits)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    out = decode_in_place(batch, split_indptr, n, lse)

    assert_matches(batch, out, lse)


def decode_in_place(batch: Batch, split_indptr: Tensor, n_splits: int, lse: Tensor) -> Tensor:
    """The call after the new rows were put into their slots."""
    for i, length in enumerate(batch.lens):
        if length:
            batch.k_cache[batch.slots[i][-1]] = batch.keys[i][-1]
            batch.v_cache[batch.slots[i][-1]] = batch.values[i][-1]
    return decode(
        batch,
        new_k=None,
        new_v=None,
        split_indptr=split_indptr,
        o_part_buf=torch.full((n_splits, *batch.q.shape[1:]), torch.nan, device="cuda"),
        ml_part_buf=torch.full((n_splits, batch.q.shape[1], 2), torch.nan, device="cuda"),
        lse=lse,
    )


def test_a_window_that_leaves_whole_splits_empty_keeps_the_rest() -> None:
    batch = make_batch([5000, 512, 513], window=1)

    assert_matches(batch, decode(batch, window=1), window=1)


def test_the_last_row_of_the_table_is_not_read_past_its_end() -> None:
    batch = make_batch([333, 77])
    table = batch.table[:, :333].contiguous()
    first, second = batch.rows.tolist()
    batch.table = table[[second, first]].clone()  # the longer one is last
    batch.rows = torch.tensor([1, 0], dtype=torch.int32, device="cuda")

    assert_matches(batch, decode(batch))


def test_a_table_beyond_2_to_the_31_entries_is_addressed_in_64_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GiB of free device memory")
    batch = make_batch([600, 90])
    wide = torch.empty(2**31 + 4096, dtype=torch.int32, device="cuda")
    table = wide.as_strided((2, 1024), (2**31, 1))
    for i, row in enumerate(batch.rows.tolist()):
        table[i, :600] = batch.table[row, :600]
    batch.table, batch.rows = table, torch.arange(2, dtype=torch.int32, device="cuda")

    assert_matches(batch, decode(batch))


def test_the_lse_merges_with_a_part_that_torch_computed() -> None:
    """Natural logarithms: a part in base 2 would get another weight."""
    batch = make_batch([700], with_new_rows=False)
    whole, _ = expected(batch, 0)
    lse = torch.empty(1, 8, device="cuda")
    head = decode(batch, lse=lse, window=300)[0].double()
    rest = Batch(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.table,
        batch.rows,
        [400],
        [batch.keys[0][:400]],
        [batch.values[0][:400]],
        batch.slots,
        None,
        None,
    )
    tail, tail_lse = expected(rest, 0)

    weight = torch.sigmoid(lse[0].double() - tail_lse)[:, None]
    merged = weight * head + (1 - weight) * tail

    assert (merged - whole).norm() <= 4e-3 * whole.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_large_and_equal_and_dominating_logits_stay_finite(dtype: torch.dtype) -> None:
    batch = make_batch([1100, 40, 600, 513], dtype=dtype, q_factor=30.0)
    for i, position in ((1, None), (2, 0), (3, -1)):
        keys = batch.keys[i]
        if position is None:
            keys[:] = keys[0]  # all logits are the same
        else:
            keys[position] = 20 * batch.q[i].view(2, 4, -1)[:, 0].sign()  # one has all the weight
        batch.k_cache[batch.slots[i][:-1]] = keys[:-1]
        batch.new_k[i] = keys[-1]  # type: ignore[index]

    out = decode(batch)

    assert out.isfinite().all()
    assert_matches(batch, out)


@pytest.mark.parametrize("n_requests", range(1, 9))
def test_no_length_leaves_a_partial_result_unwritten(n_requests: int) -> None:
    for first in range(1, 4096, 37 * n_requests):
        batch = make_batch([first + 37 * i for i in range(n_requests)], 4, 2, 64)
        assert_matches(batch, decode(batch))


def test_heads_that_are_no_power_of_two_merge_five_splits() -> None:
    batch = make_batch([2500, 2049, 2560], 28, 4, 96)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    assert_matches(batch, decode(batch, lse=lse), lse)


def test_keys_and_values_have_strides_of_their_own() -> None:
    batch = make_batch([600, 3], 4, 2, 64)
    n = len(batch.k_cache)
    k_pool = torch.full((n, 3, 2, 64), torch.nan, dtype=torch.bfloat16, device="cuda")
    v_pool = torch.full((n, 2, 2, 72), torch.nan, dtype=torch.bfloat16, device="cuda")
    k_pool[:, 1], v_pool[:, 1, :, :64] = batch.k_cache, batch.v_cache
    batch.k_cache, batch.v_cache = k_pool[:, 1], v_pool[:, 1, :, :64]

    assert_matches(batch, decode(batch))
    assert k_pool[:, [0, 2]].isnan().all() and v_pool[:, 0].isnan().all()
    assert v_pool[:, 1, :, 64:].isnan().all()


def test_flat_logits_over_a_long_sequence_lose_no_accuracy() -> None:
    batch = make_batch([65536], 7, 1, 128, q_factor=0.05)

    assert_matches(batch, decode(batch))


def test_128k_tokens_match_float64() -> None:
    batch = make_batch([131072], 8, 2, 128)

    assert_matches(batch, decode(batch))


def test_more_splits_round_the_result_by_half_a_unit_on_average() -> None:
    batch = make_batch([8192, 700], 8, 2, 128)
    apart, together = decode(batch, split_len=128), decode(batch, split_len=512)

    difference = (apart.double() - together.double()).norm()
    assert difference <= 2**-8 * together.double().norm()


def test_the_slot_of_this_step_is_never_read_a_thousand_times() -> None:
    batch = make_batch([513, 64, 1] * 4)
    first = decode(batch)

    last = torch.stack([slots[-1] for slots in batch.slots])

    for _ in range(1000):
        batch.k_cache[last] = torch.nan
        batch.v_cache[last] = torch.nan
        assert torch.equal(decode(batch), first)


@pytest.mark.parametrize("length", [1, 128, 512, 513, 1024])
def test_a_negative_slot_takes_no_new_row(length: int) -> None:
    batch = make_batch([length, 40])
    wanted = decode(batch)
    batch.table[int(batch.rows[0]), length - 1] = -1
    batch.k_cache[batch.slots[0][-1]] = torch.nan
    before = [batch.k_cache.clone(), batch.v_cache.clone()]

    out = decode(batch)

    assert torch.equal(out, wanted)
    for cache, old in zip((batch.k_cache, batch.v_cache), before, strict=True):
        assert torch.equal(cache.view(torch.int16), old.view(torch.int16))


def test_rows_that_the_kernel_before_writes_late_are_waited_for() -> None:
    """With programmatic launches the call may start while its predecessor still runs."""
    batch = make_batch([600, 1300], 8, 2, 128)
    wanted = decode(batch)
    q, late = batch.q, torch.full_like(batch.q, torch.nan)
    freqs = torch.zeros(2, 64, 2, device="cuda")
    freqs[..., 0] = 1  # a rotation by nothing: a copy
    slow = torch.randn(4096, 4096, device="cuda")
    n = 2 * 3
    buffers = {
        "o_part_buf": torch.empty(n, 8, 128, device="cuda"),
        "ml_part_buf": torch.empty(n, 8, 2, device="cuda"),
        "out_buf": torch.empty_like(q),
        "split_indptr": torch.tensor([0, 2, 5], dtype=torch.int32, device="cuda"),
    }
    kv_indptr = batch.kv_indptr

    def steps() -> Tensor:
        slow @ slow
        ops.rotary_emb(q, freqs, out=late)
        return ops.attn_paged_decode(
            late,
            batch.k_cache,
            batch.v_cache,
            batch.table,
            batch.rows,
            kv_indptr,
            batch.new_k,
            batch.new_v,
            is_plan_settled=True,
            **buffers,
        )

    steps()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = steps()
    for _ in range(50):
        late.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, wanted)


def test_nothing_is_spread_where_the_workspace_has_no_room_and_the_bits_stay() -> None:
    batch = make_batch([1000])
    narrow = decode(batch)
    n = 4 * 2
    wide = decode(
        batch,
        o_part_buf=torch.full((n, *batch.q.shape[1:]), torch.nan, device="cuda"),
        ml_part_buf=torch.full((n, batch.q.shape[1], 2), torch.nan, device="cuda"),
    )

    assert torch.equal(narrow, wide)
    assert_matches(batch, wide)


@pytest.mark.parametrize("n_long", [1, 5, 20])
def test_long_requests_among_many_short_ones_merge_to_the_bits_they_have_alone(n_long: int) -> None:
    """The first 16 of them by a thread block for each head, the others by a warp."""
    batch = make_batch([*range(1, 700, 11), *[8700, 300] * n_long, 1, 0], 32, 4, 64)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    out = decode(batch, lse=lse)

    assert_matches(batch, out, lse)
    for i in (64, 64 + 2 * (n_long - 1)):
        assert batch.lens[i] == 8700
        assert torch.equal(decode(one_of(batch, i))[0], out[i])


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_a_request_spread_over_thread_blocks_has_the_bits_it_has_in_a_batch(
    group: int, head_dim: int
) -> None:
    batch = make_batch([1000, 1, 3100, 512, 513, 6000, *[700] * 90], 2 * group, 2, head_dim)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")
    together = decode(batch, lse=lse)

    for i in range(6):
        n = 4 * -(-batch.lens[i] // 512)
        own_lse = torch.full((1, batch.q.shape[1]), torch.nan, device="cuda")
        alone = decode(
            one_of(batch, i),
            o_part_buf=torch.full((n, *batch.q.shape[1:]), torch.nan, device="cuda"),
            ml_part_buf=torch.full((n, batch.q.shape[1], 2), torch.nan, device="cuda"),
            lse=own_lse,
        )
        assert torch.equal(alone[0], together[i])
        assert torch.equal(own_lse[0], lse[i])
    assert math.isfinite(float(lse.sum()))
