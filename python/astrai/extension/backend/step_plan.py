"""What TorchNativeBackend derives once per step from the index arrays and reuses in every layer.

A ragged batch splits in two. Decode rows (one new token) are attended together: their slots form
one padded matrix. Prefill rows (more than one) are few and long, so each is attended alone, in
tiles of query rows that see no more keys than their last row may.

A padding position repeats the first slot of its own request and is masked. So no slot that the
request does not own is ever read, and garbage or NaN elsewhere in the pool cannot reach a result.
"""

from __future__ import annotations

from dataclasses import dataclass
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

    rows: Tensor | slice  # packed rows of q; a slice when the whole step is decode
    slots: Tensor | slice  # int64 [n * max_len], padded, or the one request's contiguous run
    n: int
    max_len: int
    mask: Tensor | None  # [n, 1, 1, max_len] 0 or -inf in q's dtype; None when lengths are equal
    # [n * max_len, n_kv_heads * head_dim] gather targets shared by all layers; None for a run.
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


def causal_mask(n_rows: int, kv_len: int, like: Tensor) -> Tensor:
    """[n_rows, kv_len] of 0 and -inf in like's dtype: row i sees keys 0..kv_len - n_rows + i."""
    mask = torch.full((n_rows, kv_len), float("-inf"), dtype=like.dtype, device=like.device)
    return mask.triu_(kv_len - n_rows + 1)


def _build(kv_cache: KVCache) -> StepPlan:
    seq_lens, q_lens = host_lens(kv_cache)
    decode = [i for i, q_len in enumerate(q_lens) if q_len == 1]
    starts = _prefix_sum(q_lens)
    prefill = tuple(
        _prefill_plan(kv_cache, i, starts[i], seq_lens[i], q_len)
        for i, q_len in enumerate(q_lens)
        if q_len > 1
    )
    if not decode:
        return StepPlan(None, prefill)
    rows: Tensor | slice = slice(None)
    if prefill:
        rows = torch.tensor([starts[i] for i in decode], device=kv_cache.k_buffer.device)
    return StepPlan(_decode_plan(kv_cache, decode, rows, [seq_lens[i] for i in decode]), prefill)


def _prefix_sum(lens: tuple[int, ...]) -> list[int]:
    sums = [0]
    for n in lens:
        sums.append(sums[-1] + n)
    return sums


def _decode_plan(
    kv_cache: KVCache, requests: list[int], rows: Tensor | slice, seq_lens: list[int]
) -> DecodePlan:
    n, max_len = len(requests), max(seq_lens)
    if n == 1:
        slots = _request_slots(kv_cache, requests[0], max_len)
        if isinstance(slots, slice):
            return DecodePlan(rows, slots, 1, max_len, None, None, None)
        padded, mask = slots, None
    else:
        padded, mask = _padded_slots(kv_cache, requests, max_len, min(seq_lens))
    n_values = kv_cache.k_buffer.shape[2] * kv_cache.k_buffer.shape[3]
    k_rows = kv_cache.k_buffer.new_empty(n * max_len, n_values)
    return DecodePlan(rows, padded, n, max_len, mask, k_rows, torch.empty_like(k_rows))


def _padded_slots(
    kv_cache: KVCache, requests: list[int], max_len: int, min_len: int
) -> tuple[Tensor, Tensor | None]:
    """([n * max_len] slots, mask) of several requests."""
    seq_lens, table_rows = kv_cache.seq_lens, kv_cache.req_pool_indices
    if len(requests) < len(table_rows):
        subset = torch.tensor(requests, device=seq_lens.device)
        seq_lens, table_rows = seq_lens[subset], table_rows[subset]
    slots = kv_cache.req_to_token[:, :max_len].index_select(0, table_rows)
    if min_len == max_len:
        return slots.to(torch.int64).flatten(), None
    is_own = torch.arange(max_len, device=seq_lens.device) < seq_lens.unsqueeze(1)
    slots = torch.where(is_own, slots, slots[:, :1]).to(torch.int64)
    mask = kv_cache.k_buffer.new_zeros(is_own.shape).masked_fill_(~is_own, float("-inf"))
    return slots.flatten(), mask[:, None, None]


def _prefill_plan(
    kv_cache: KVCache, request: int, first_row: int, seq_len: int, q_len: int
) -> PrefillPlan:
    slots = _request_slots(kv_cache, request, seq_len)
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


def _request_slots(kv_cache: KVCache, request: int, seq_len: int) -> Tensor | slice:
    """Slots of one request: a slice when they are one contiguous run, else int64 [seq_len].

    A run is only looked for on the CPU: elsewhere reading the table would synchronise.
    """
    slots = kv_cache.req_to_token[kv_cache.req_pool_indices[request], :seq_len]
    if slots.device.type == "cpu":
        first = int(slots[0])
        if int(slots[-1]) - first == seq_len - 1 and bool((slots.diff() == 1).all()):
            return slice(first, first + seq_len)
    return slots.to(torch.int64)
