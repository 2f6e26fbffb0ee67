"""store_kv: the kernel against index assignment on a GPU, and its refusals, which need none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)


def rows(n_tokens: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(n_tokens, n_kv_heads, head_dim, device="cuda").to(dtype)


def caches(n_slots: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two caches full of NaN: a slot that was not written stays visible."""
    shape = (n_slots, *like.shape[1:])
    filled = [torch.full(shape, torch.nan, dtype=like.dtype, device="cuda") for _ in range(2)]
    return filled[0], filled[1]


def assert_stored(cache: Tensor, written: Tensor, slots: Tensor) -> None:
    """The slots hold the rows bit for bit and every other slot is still NaN."""
    slots = slots.long()
    assert torch.equal(cache[slots], written)
    untouched = torch.ones(cache.shape[0], dtype=torch.bool, device="cuda")
    untouched[slots] = False
    assert cache[untouched].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize(("n_tokens", "n_kv_heads"), [(1, 1), (3, 3), (4, 8), (257, 2)])
def test_rows_reach_their_slots_and_nothing_else_changes(
    n_tokens: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    k, v = rows(n_tokens, n_kv_heads, head_dim, dtype), rows(n_tokens, n_kv_heads, head_dim, dtype)
    k_cache, v_cache = caches(300, k)
    slots = torch.randperm(300, device="cuda")[:n_tokens].int()

    ops.store_kv(k, v, k_cache, v_cache, slots)

    assert_stored(k_cache, k, slots)
    assert_stored(v_cache, v, slots)


@pytest.mark.gpu
def test_t62_negative_slots_are_skipped() -> None:
    k, v = rows(6, 2, 64, torch.bfloat16), rows(6, 2, 64, torch.bfloat16)
    k_cache, v_cache = caches(10, k)
    slots = torch.tensor([4, -1, 0, -(2**31), 9, -1], dtype=torch.int32, device="cuda")
    kept = slots >= 0

    ops.store_kv(k, v, k_cache, v_cache, slots)

    assert_stored(k_cache, k[kept], slots[kept])
    assert_stored(v_cache, v[kept], slots[kept])


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [6, 20, 68, 1032])
def test_rows_off_16_bytes_are_copied_whole(head_dim: int) -> None:
    k, v = rows(5, 1, head_dim, torch.float16), rows(5, 1, head_dim, torch.float16)
    k_cache, v_cache = caches(8, k)
    slots = torch.tensor([7, 2, 0, 5, 1], dtype=torch.int32, device="cuda")

    ops.store_kv(k, v, k_cache, v_cache, slots)

    assert_stored(k_cache, k, slots)
    assert_stored(v_cache, v, slots)


@pytest.mark.gpu
def test_a_row_of_vectors_with_a_tail_is_copied_whole() -> None:
    # Slots padded to 16 bytes: two vectors and a tail of four elements in each row.
    padded = torch.full((2, 9, 1, 24), torch.nan, dtype=torch.bfloat16, device="cuda")
    k_cache, v_cache = padded[0, :, :, :20], padded[1, :, :, :20]
    wide = torch.randn(4, 1, 24, device="cuda").to(torch.bfloat16)
    k, v = wide[:, :, :20], wide.flip(0)[:, :, :20]
    slots = torch.tensor([8, 3, 0, 6], dtype=torch.int32, device="cuda")

    ops.store_kv(k, v, k_cache, v_cache, slots)

    assert_stored(k_cache, k, slots)
    assert_stored(v_cache, v, slots)
    assert padded[:, :, :, 20:].isnan().all(), "the padding is not the row's"


@pytest.mark.gpu
def test_t44_slices_of_a_fused_row_are_read_by_their_stride() -> None:
    fused = torch.randn(7, 3, 2, 64, device="cuda").to(torch.bfloat16)
    k, v = fused[:, 1], fused[:, 2]
    k_cache, v_cache = caches(7, k)
    slots = torch.arange(7, dtype=torch.int32, device="cuda").flip(0)

    ops.store_kv(k, v, k_cache, v_cache, slots)

    assert_stored(k_cache, k, slots)
    assert_stored(v_cache, v, slots)


@pytest.mark.gpu
def test_t25_slots_beyond_2_to_the_31_elements_are_addressed_in_64_bits() -> None:
    n_slots, row = 2**31 // 1024 + 8, 1024
    if torch.cuda.mem_get_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GiB of free device memory")
    cache = torch.zeros(n_slots, 1, row, dtype=torch.bfloat16, device="cuda")
    k = rows(2, 1, row, torch.bfloat16)
    slots = torch.tensor([n_slots - 1, 3], dtype=torch.int32, device="cuda")

    ops.store_kv(k, k, cache, cache, slots)

    assert torch.equal(cache[n_slots - 1], k[0])
    assert torch.equal(cache[3], k[1])
    assert not cache[n_slots - 8 : n_slots - 1].any()
    assert not cache[:3].any()


@pytest.mark.gpu
def test_no_tokens_is_no_work() -> None:
    k = rows(0, 2, 64, torch.bfloat16)
    k_cache, v_cache = caches(4, k)

    ops.store_kv(k, k, k_cache, v_cache, torch.empty(0, dtype=torch.int32, device="cuda"))

    assert k_cache.isnan().all()
    assert v_cache.isnan().all()


def test_float32_has_no_kernel() -> None:
    k, cache = torch.zeros(2, 1, 64), torch.zeros(4, 1, 64)
    with pytest.raises(ops.KernelUnavailableError, match="k is float32"):
        ops.store_kv(k, k, cache, cache, torch.zeros(2, dtype=torch.int32))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (torch.zeros(3, dtype=torch.int32), r"out_cache_loc has shape \[3\]; expected \[T=2\]"),
        (torch.zeros(2, dtype=torch.int64), "out_cache_loc is int64; accepted: int32"),
        (torch.zeros(4, dtype=torch.int32)[::2], "must be contiguous"),
    ],
)
def test_slots_that_do_not_fit_are_refused(slots: Tensor, message: str) -> None:
    k = torch.zeros(2, 1, 64, dtype=torch.bfloat16)
    cache = torch.zeros(4, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=message):
        ops.store_kv(k, k, cache, cache, slots)


def test_caches_of_other_heads_are_refused() -> None:
    k = torch.zeros(2, 2, 64, dtype=torch.bfloat16)
    cache = torch.zeros(4, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"k_cache has shape \[4, 1, 64\]; expected"):
        ops.store_kv(k, k, cache, cache, torch.zeros(2, dtype=torch.int32))


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    k = torch.zeros(2, 1, 64, dtype=torch.bfloat16)
    cache = torch.zeros(4, 1, 64, dtype=torch.bfloat16)
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"k is on the CPU|no CUDA kernels"):
        ops.store_kv(k, k, cache, cache, torch.zeros(2, dtype=torch.int32))
