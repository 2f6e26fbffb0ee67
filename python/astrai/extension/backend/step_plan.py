"""What TorchNativeBackend derives once per step from the index arrays and reuses in every layer.

A ragged batch splits in two. Decode rows (one new token) are attended together: by the compiled CPU
kernel, which reads the table, or over a `Gather` of their slots as one padded matrix. Prefill rows
(more than one) are few and long, so each is attended alone, in tiles of query rows that see no more
keys than their last row may.

A padding position repeats the first slot of its own request and is masked. So no slot that the
request does not own is ever read, and garbage or NaN elsewhere in the pool cannot reach a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from .cache_io import host_lens

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache

# Query rows that share one mask. Bounds the mask to 512 x kv_len and skips the keys after the tile.
TILE_ROWS = 512


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """All requests with one new token."""

    rows: Tensor | None  # int64 [n] packed rows of q; None when the whole step is decode
    req_pool_indices: Tensor  # int32 [n] row of req_to_token
    kv_indptr: Tensor  # int32 [n + 1] prefix sum of seq_lens
    seq_lens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Where the keys and values of the decode rows lie, as one padded matrix."""

    n: int
    max_len: int
    slots: Tensor | slice  # int64 [n * max_len], or the one request's contiguous run
    mask: (
        Tensor | None
    )  # [n, 1, 1, max_len] 0 or -inf in the pool's dtype; None if nothing is padded
    # [n * max_len, n_kv_heads * head_dim] targets shared by all layers; None for a run.
    k_rows: Tensor | None
    v_rows: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """Query rows of one request and the keys that the last of them sees."""

    rows: slice  # packed rows of q
    kv_len: int
    mask: Tensor | None  # [rows, kv_len] 0 or -inf; None when plain causal order (row i, keys 0..i)


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """One request with more than one new token."""

    slots: Tensor | slice  # int64 [seq_len], or a contiguous run
    tiles: tuple[PrefillTile, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    decode: DecodePlan | None
    prefill: tuple[PrefillPlan, ...]


def step_plan(kv_cache: KVCache) -> StepPlan:
    """The plan of this step, built at its first layer."""
    plan = kv_cache.scratch.get("torch_native")
    if plan is None:
        plan = _build(kv_cache)
        kv_cache.scratch["torch_native"] = plan
    return plan


def decode_gather(kv_cache: KVCache, decode: DecodePlan) -> Gather:
    """The gather of the step's decode rows, built at the first layer that asks for it."""
    gather = kv_cache.scratch.get("torch_native_gather")
    if gather is None:
        gather = _build_gather(kv_cache, decode)
        kv_cache.scratch["torch_native_gather"] = gather
    return gather


def causal_mask(n_rows: int, kv_len: int, like: Tensor) -> Tensor:
    """[n_rows, kv_len] of 0 and -inf in like's dtype: row i sees keys 0..kv_len - n_rows + i."""
    mask = torch.full((n_rows, kv_len), float("-inf"), dtype=like.dtype, device=like.device)
    return mask.triu_(kv_len - n_rows + 1)


def _build(kv_cache: KVCache) -> StepPlan:
    seq_lens, q_lens = host_lens(kv_cache)
    decode = [i for i, q_len in enumerate(q_lens) if q_len == 1]
    first_rows = [0, *accumulate(q_lens)]
    prefill = tuple(
        _prefill_plan(kv_cache, i, first_rows[i], seq_lens[i], q_len)
        for i, q_len in enumerate(q_lens)
        if q_len > 1
    )
    if not decode:
        return StepPlan(None, prefill)
    if not prefill:
        whole = DecodePlan(None, kv_cache.req_pool_indices, kv_cache.kv_indptr, seq_lens)
        return StepPlan(whole, prefill)
    device = kv_cache.k_buffer.device
    decode_lens = tuple(seq_lens[i] for i in decode)
    part = DecodePlan(
        torch.tensor([first_rows[i] for i in decode], device=device),
        kv_cache.req_pool_indices[torch.tensor(decode, device=device)],
        torch.tensor([0, *accumulate(decode_lens)], dtype=torch.int32, device=device),
        decode_lens,
    )
    return StepPlan(part, prefill)


def _build_gather(kv_cache: KVCache, decode: DecodePlan) -> Gather:
    n, max_len, min_len = len(decode.seq_lens), max(decode.seq_lens), min(decode.seq_lens)
    mask: Tensor | None = None
    if n == 1:
        own = _request_slots(kv_cache, decode.req_pool_indices[0], max_len)
        if isinstance(own, slice):
            return Gather(n, max_len, own, None, None, None)
        slots = own
    else:
        table = kv_cache.req_to_token[:, :max_len].index_select(0, decode.req_pool_indices)
        if min_len < max_len:
            position = torch.arange(max_len, device=table.device)
            is_own = position < decode.kv_indptr.diff().unsqueeze(1)
            table = torch.where(is_own, table, table[:, :1])
            zeros = kv_cache.k_buffer.new_zeros(n, 1, 1, max_len)
            mask = zeros.masked_fill_(~is_own[:, None, None], float("-inf"))
        slots = table.to(torch.int64).flatten()
    n_values = kv_cache.k_buffer.shape[2] * kv_cache.k_buffer.shape[3]
    k_rows = kv_cache.k_buffer.new_empty(n * max_len, n_values)
    return Gather(n, max_len, slots, mask, k_rows, torch.empty_like(k_rows))


def _prefill_plan(
    kv_cache: KVCache, request: int, first_row: int, seq_len: int, q_len: int
) -> PrefillPlan:
    slots = _request_slots(kv_cache, kv_cache.req_pool_indices[request], seq_len)
    if q_len == seq_len:  # nothing cached: the kernels' own causal order fits
        tile = PrefillTile(slice(first_row, first_row + q_len), seq_len, None)
        return PrefillPlan(slots, (tile,))
    tiles = []
    for begin in range(0, q_len, TILE_ROWS):
        end = min(begin + TILE_ROWS, q_len)
        kv_len = seq_len - q_len + end
        mask = causal_mask(end - begin, kv_len, kv_cache.k_buffer)
        tiles.append(PrefillTile(slice(first_row + begin, first_row + end), kv_len, mask))
    return PrefillPlan(slots, tuple(tiles))


def _request_slots(kv_cache: KVCache, table_row: Tensor, seq_len: int) -> Tensor | slice:
    """Slots of one request: a slice when they are one contiguous run, else int64 [seq_len].

    A run is only looked for on the CPU: elsewhere reading the table would synchronise.
    """
    slots = kv_cache.req_to_token[table_row, :seq_len]
    if slots.device.type == "cpu":
        first = int(slots[0])
        if int(slots[-1]) - first == seq_len - 1 and bool((slots.diff() == 1).all()):
            return slice(first, first + seq_len)
    return slots.to(torch.int64)
