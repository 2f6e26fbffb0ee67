"""attn_paged_decode: the kernel against float64 on a GPU, and its refusals, which need none.

Slots that no request owns, keys and values behind a window, the slot of this step's token, outputs
and workspaces hold NaN, and table entries behind a request point out of the pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)
# Relative error of a row against float64: rounding of the weights and of the result.
MAX_ERROR = {torch.bfloat16: 4e-3, torch.float16: 6e-4}
EDGES = [0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 0, 511, 512, 513, 1023, 1024, 1025]


@dataclass
class Batch:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    table: Tensor
    rows: Tensor  # req_pool_indices
    lens: list[int]
    keys: list[Tensor]  # of each request [kv_len, n_kv_heads, head_dim]
    values: list[Tensor]
    slots: list[Tensor]
    new_k: Tensor | None
    new_v: Tensor | None

    @property
    def kv_indptr(self) -> Tensor:
        return torch.tensor([0, *self.lens], device=self.q.device).cumsum(0).int()


def make_batch(
    lens: list[int],
    n_heads: int = 8,
    n_kv_heads: int = 2,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    window: int = 0,
    with_new_rows: bool = True,
    q_factor: float = 1.0,
) -> Batch:
    total, batch = sum(lens), len(lens)
    order = torch.randperm(total + 5, device="cuda")
    kv_shape = (total + 5, n_kv_heads, head_dim)
    caches = [torch.full(kv_shape, torch.nan, dtype=dtype, device="cuda") for _ in range(2)]
    filled = [torch.randn(total, *kv_shape[1:], device="cuda").to(dtype) for _ in range(2)]
    table = torch.full((batch + 2, max([*lens, 1])), 2**31 - 1, dtype=torch.int32, device="cuda")
    rows = torch.randperm(batch + 2, device="cuda")[:batch].int()
    slots = list(order[:total].split(lens))
    keys, values = (list(x.split(lens)) for x in filled)
    news: list[Tensor] = []
    for cache, per_request in zip(caches, (keys, values), strict=True):
        new = torch.full((batch, *kv_shape[1:]), torch.nan, dtype=dtype, device="cuda")
        for i, length in enumerate(lens):
            table[int(rows[i]), :length] = slots[i].int()
            seen = slice(max(0, length - window) if window else 0, length - with_new_rows)
            if length:
                cache[slots[i][seen]] = per_request[i][seen]
                new[i] = per_request[i][-1]
        news.append(new)
    q = (torch.randn(batch, n_heads, head_dim, device="cuda") * q_factor).to(dtype)
    new_k, new_v = news if with_new_rows else (None, None)
    return Batch(q, *caches, table, rows, list(lens), keys, values, slots, new_k, new_v)


def decode(batch: Batch, **options: object) -> Tensor:
    """The call with every buffer given, full of NaN. options replace or add arguments."""
    split_len = int(options.get("split_len", 512))  # type: ignore[call-overload]
    n_splits = sum(max(1, -(-length // split_len)) for length in batch.lens) + 1

    def poisoned(*shape: int) -> Tensor:
        return torch.full(shape, torch.nan, device="cuda")

    arguments: dict[str, object] = {
        "new_k": batch.new_k,
        "new_v": batch.new_v,
        "o_part_buf": poisoned(n_splits, *batch.q.shape[1:]),
        "ml_part_buf": poisoned(n_splits, batch.q.shape[1], 2),
        "out_buf": torch.full_like(batch.q, torch.nan),
    }
    return ops.attn_paged_decode(  # type: ignore[misc]
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.table,
        batch.rows,
        batch.kv_indptr,
        **(arguments | options),
    )


def expected(
    batch: Batch, i: int, window: int = 0, soft_cap: float = 0.0, sm_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """(out, lse) of one request in float64."""
    q = batch.q[i].double()
    keys, values = (x[i][-window if window else 0 :].double() for x in (batch.keys, batch.values))
    group = q.shape[0] // keys.shape[1]
    scale = q.shape[1] ** -0.5 if sm_scale is None else sm_scale
    logits = torch.einsum("hd,nhd->hn", q, keys.repeat_interleave(group, 1)) * scale
    if soft_cap:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    out = torch.einsum("hn,nhd->hd", logits.softmax(-1), values.repeat_interleave(group, 1))
    return out, logits.logsumexp(-1)


def assert_matches(batch: Batch, out: Tensor, lse: Tensor | None = None, **options: object) -> None:
    for i, length in enumerate(batch.lens):
        if length == 0:
            assert not out[i].any()
            assert lse is None or (lse[i] == -math.inf).all()
            continue
        wanted, wanted_lse = expected(batch, i, **options)  # type: ignore[arg-type]
        error = ((out[i].double() - wanted).norm() / wanted.norm()).item()
        assert error <= MAX_ERROR[out.dtype], f"request {i} of {length} tokens: error {error:.1e}"
        if lse is not None:
            torch.testing.assert_close(lse[i].double(), wanted_lse, rtol=1e-4, atol=1e-3)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_every_head_size_and_edge_length_matches_float64(head_dim: int, dtype: torch.dtype) -> None:
    batch = make_batch(EDGES, head_dim=head_dim, dtype=dtype)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    out = decode(batch, lse=lse)

    assert_matches(batch, out, lse)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 40])
def test_any_group_of_query_heads_matches_float64(group: int, head_dim: int) -> None:
    batch = make_batch([70, 1, 600], 2 * group, 2, head_dim)

    assert_matches(batch, decode(batch))


@pytest.mark.gpu
def test_the_new_rows_reach_their_slots_and_nothing_else_changes() -> None:
    batch = make_batch(EDGES)
    before = [batch.k_cache.clone(), batch.v_cache.clone()]

    decode(batch)

    last = torch.stack([slots[-1] for slots in batch.slots if len(slots)])
    others = torch.ones(len(batch.k_cache), dtype=torch.bool, device="cuda")
    others[last] = False
    for cache, old, rows in zip(
        (batch.k_cache, batch.v_cache), before, (batch.keys, batch.values), strict=True
    ):
        assert torch.equal(cache[last], torch.stack([x[-1] for x in rows if len(x)]))
        assert torch.equal(cache[others].view(torch.int16), old[others].view(torch.int16))


@pytest.mark.gpu
def test_without_new_rows_the_last_slot_is_read() -> None:
    batch = make_batch([700, 1, 64], with_new_rows=False)

    assert_matches(batch, decode(batch))


@pytest.mark.gpu
@pytest.mark.parametrize("window", [1, 16, 100, 512, 600, 4096])
def test_a_window_sees_the_last_positions_and_reads_no_other_slot(window: int) -> None:
    batch = make_batch([1, 50, 600, 1500, 5000], window=window)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    assert_matches(batch, decode(batch, window=window, lse=lse), lse, window=window)


@pytest.mark.gpu
@pytest.mark.parametrize(("soft_cap", "q_factor"), [(30.0, 1.0), (5.0, 10.0)])
def test_soft_capped_logits_match_float64(soft_cap: float, q_factor: float) -> None:
    batch = make_batch([1, 50, 1500], q_factor=q_factor)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    assert_matches(batch, decode(batch, soft_cap=soft_cap, lse=lse), lse, soft_cap=soft_cap)


@pytest.mark.gpu
@pytest.mark.parametrize("sm_scale", [1.0, 0.01, 4.0])
def test_sm_scale_is_applied_in_natural_units(sm_scale: float) -> None:
    batch = make_batch([1, 50, 1500], dtype=torch.float16)
    lse = torch.full(batch.q.shape[:2], torch.nan, device="cuda")

    assert_matches(batch, decode(batch, sm_scale=sm_scale, lse=lse), lse, sm_scale=sm_scale)


@pytest.mark.gpu
@pytest.mark.parametrize("split_len", [128, 256, 512])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(split_len: int) -> None:
    batch = make_batch([9000, 1, 3333, 64, 0, *range(1, 1400, 37)], 9, 3, 64)
    together = decode(batch, split_len=split_len)

    for i in range(8):
        alone = Batch(
            batch.q[i : i + 1],
            batch.k_cache,
            batch.v_cache,
            batch.table,
            batch.rows[i : i + 1],
            batch.lens[i : i + 1],
            batch.keys,
            batch.values,
            batch.slots,
            batch.new_k[i : i + 1],
            batch.new_v[i : i + 1],
        )
        assert torch.equal(decode(alone, split_len=split_len)[0], together[i])


@pytest.mark.gpu
def test_a_hundred_repeats_give_the_same_bits() -> None:
    batch = make_batch([4000, 1, 700, 64] * 8, 32, 8)
    first = decode(batch)

    assert all(torch.equal(decode(batch), first) for _ in range(100))


@pytest.mark.gpu
@pytest.mark.parametrize("n_requests", [1, 3, 33, 256, 512, 1100])
def test_batches_of_any_size_with_empty_requests_match_float64(n_requests: int) -> None:
    batch = make_batch([i * 37 % 600 * (i % 3 != 1) for i in range(n_requests)], 4, 2, 64)

    assert_matches(batch, decode(batch))


@pytest.mark.gpu
def test_a_captured_call_replays_with_other_lengths() -> None:
    lens = [[1, 1, 1], [5, 1300, 64], [4000, 0, 513], [2, 3, 511]]
    batches = [make_batch(some, 8, 2, 128) for some in lens]
    static = make_batch([4000, 4000, 4000], 8, 2, 128)
    n = 3 * 8
    buffers = {
        "o_part_buf": torch.empty(n, 8, 128, device="cuda"),
        "ml_part_buf": torch.empty(n, 8, 2, device="cuda"),
        "out_buf": torch.empty_like(static.q),
    }
    kv_indptr = torch.tensor([0, 1, 2, 3], dtype=torch.int32, device="cuda")
    split_indptr = kv_indptr.clone()

    def call() -> Tensor:
        return ops.attn_paged_decode(
            static.q,
            static.k_cache,
            static.v_cache,
            static.table,
            static.rows,
            kv_indptr,
            static.new_k,
            static.new_v,
            split_indptr=split_indptr,
            **buffers,
        )

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for batch in batches:
        for name in ("q", "rows", "new_k", "new_v"):
            getattr(static, name).copy_(getattr(batch, name))
        for name in ("k_cache", "v_cache"):
            getattr(static, name)[: len(batch.k_cache)] = getattr(batch, name)
        static.table.fill_(2**31 - 1)
        static.table[:, : batch.table.shape[1]] = batch.table
        kv_indptr.copy_(batch.kv_indptr)
        splits = [max(1, -(-length // 512)) for length in batch.lens]
        split_indptr.copy_(torch.tensor([0, *splits]).cumsum(0))
        out.fill_(torch.nan)
        graph.replay()
        assert_matches(batch, out)


@pytest.mark.gpu
def test_slices_of_a_fused_row_are_read_by_their_stride() -> None:
    batch = make_batch([600, 3], 4, 2, 64)
    fused = torch.full((2, 8, 64), torch.nan, dtype=torch.bfloat16, device="cuda")
    fused[:, :4], fused[:, 4:6], fused[:, 6:] = batch.q, batch.new_k, batch.new_v
    wide = torch.full((2, 4, 72), torch.nan, dtype=torch.bfloat16, device="cuda")
    batch.q, batch.new_k, batch.new_v = fused[:, :4], fused[:, 4:6], fused[:, 6:]

    out = decode(batch, out_buf=wide[:, :, :64])

    assert_matches(batch, out)
    assert wide[:, :, 64:].isnan().all()


@pytest.mark.gpu
def test_a_pool_beyond_2_to_the_31_elements_is_addressed_in_64_bits() -> None:
    n_slots = 2**31 // 1024 + 600
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB of free device memory")
    batch = make_batch([500], 8, 8)
    big = [torch.empty(n_slots, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    shift = n_slots - len(batch.k_cache)
    for cache, small in zip(big, (batch.k_cache, batch.v_cache), strict=True):
        cache[shift:] = small
    batch.k_cache, batch.v_cache = big
    batch.table[int(batch.rows[0])] += shift

    assert_matches(batch, decode(batch))


@pytest.mark.gpu
def test_nan_in_one_request_stays_there() -> None:
    batch = make_batch([600, 700, 800])
    clean = decode(batch)
    batch.q[1] = torch.nan

    out = decode(batch)

    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.gpu
def test_buffers_are_made_when_none_are_given() -> None:
    batch = make_batch([1, 0, 1300])

    out = decode(batch, o_part_buf=None, ml_part_buf=None, out_buf=None)

    assert_matches(batch, out)


@pytest.mark.gpu
def test_no_requests_are_no_work() -> None:
    batch = make_batch([1])
    empty = batch.q[:0]

    out = ops.attn_paged_decode(
        empty,
        batch.k_cache,
        batch.v_cache,
        batch.table,
        batch.rows[:0],
        torch.zeros(1, dtype=torch.int32, device="cuda"),
    )

    assert out.shape == empty.shape


def cpu_call(**changes: object) -> Tensor:
    """A call whose tensors fit together but lie on the CPU, with changes."""
    cache = torch.zeros(8, 2, 64, dtype=torch.bfloat16)
    arguments: dict[str, object] = {
        "q": torch.zeros(3, 4, 64, dtype=torch.bfloat16),
        "k_cache": cache,
        "v_cache": cache.clone(),
        "req_to_token": torch.zeros(5, 16, dtype=torch.int32),
        "req_pool_indices": torch.zeros(3, dtype=torch.int32),
        "kv_indptr": torch.arange(4, dtype=torch.int32),
    }
    return ops.attn_paged_decode(**(arguments | changes))  # type: ignore[arg-type]


def test_tensors_that_fit_reach_the_question_of_the_kernel() -> None:
    if _C.BUILT_WITH_CUDA:
        with pytest.raises(ValueError, match="q is on the CPU; expected a CUDA device"):
            cpu_call()
    else:
        with pytest.raises(ops.KernelUnavailableError, match="attn_paged_decode: this build has"):
            cpu_call()


def test_float32_has_no_kernel() -> None:
    with pytest.raises(ops.KernelUnavailableError, match="attn_paged_decode: q is float32"):
        cpu_call(q=torch.zeros(3, 4, 64))


BF16 = torch.bfloat16
PLAN = {
    "members": torch.zeros(3, 4, dtype=torch.int32),
    "n_units": torch.zeros(2, dtype=torch.int32),
    "units": torch.zeros(3, 2, dtype=torch.int32),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(3, 5, 64, dtype=BF16)}, "q has 5 heads; expected a multiple of the 2"),
        ({"q": torch.zeros(3, 0, 64, dtype=BF16)}, "q has 0 heads; expected a multiple of the 2"),
        ({"q": torch.zeros(3, 64, dtype=BF16)}, r"q has shape \[3, 64\]; expected \[B, H, D\]"),
        ({"k_cache": torch.zeros(8, 2, 32, dtype=BF16)}, "k_cache has shape"),
        ({"v_cache": torch.zeros(7, 2, 64, dtype=BF16)}, "v_cache has shape"),
        ({"k_cache": torch.zeros(8, 2, 64, dtype=torch.float16)}, "k_cache is float16"),
        ({"k_cache": torch.zeros(8, 2, 66, dtype=BF16)[..., :64]}, "start on 16 bytes"),
        ({"q": torch.zeros(3, 4, 128, dtype=BF16)[..., ::2]}, "must be contiguous"),
        ({"kv_indptr": torch.arange(3, dtype=torch.int32)}, r"kv_indptr has shape \[3\]"),
        ({"kv_indptr": torch.arange(4)}, "kv_indptr is int64; accepted: int32"),
        ({"req_pool_indices": torch.zeros(2, dtype=torch.int32)}, "req_pool_indices has shape"),
        ({"req_to_token": torch.zeros(80, dtype=torch.int32)}, "req_to_token has shape"),
        ({"new_k": torch.zeros(3, 2, 64, dtype=BF16)}, "new_k and new_v go together"),
        ({"out_buf": torch.zeros(3, 4, 64, dtype=torch.float16)}, "out is float16"),
        ({"stack_len": 2}, "stack_len is 2; 1 to 1 are accepted without units"),
        ({"n_units": torch.zeros(2, dtype=torch.int32)}, "members, n_units and units go"),
        (PLAN | {"stack_len": 9}, "stack_len is 9; 1 to 8 are accepted for these heads"),
        (PLAN | {"members": torch.zeros(5, 4, dtype=torch.int32)}, "members has shape"),
        (PLAN | {"units": torch.zeros(3, 2)}, "units is float32; accepted: int32"),
        ({"split_len": 100}, "split_len is 100; it must be a positive multiple of 128"),
        ({"split_len": 1024}, "split_len is 1024; .* up to 512"),
        ({"window": -1}, "window is -1"),
        ({"soft_cap": -1.0}, "soft_cap is -1"),
        ({"mask": torch.ones(3, 16, dtype=torch.bool)}, "mask is a tensor; accepted: None"),
        (
            {"o_part_buf": torch.zeros(2, 4, 64), "ml_part_buf": torch.zeros(2, 4, 2)},
            "room for 2 splits; the 3 requests",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cpu_call(**changes)
