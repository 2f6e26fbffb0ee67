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
    seq_lens: tuple[int, ...]  # with a window: the keys that it holds
    req_to_token: Tensor  # int32 [n_reqs, max_len]; with a window: of its positions alone
    window: int | None  # None where it holds every key


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
    """Query rows of one request and the keys that any of them sees."""

    rows: slice  # packed rows of q
    keys: slice  # of the request's keys
    mask: Tensor | None  # [rows, keys] 0 or -inf; None when plain causal order (row i, keys 0..i)


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """One request with more than one new token."""

    slots: Tensor | slice  # int64 [seq_len], or a contiguous run
    tiles: tuple[PrefillTile, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    decode: DecodePlan | None
    prefill: tuple[PrefillPlan, ...]


def step_plan(kv_cache: KVCache, window: int | None, has_soft_cap: bool) -> StepPlan:
    """The plan of this step's layers of one kind, built at the first of them."""
    if window is not None and window >= max(host_lens(kv_cache)[0], default=0):
        window = None  # it holds every key
    key = "torch_native"
    if window is not None or has_soft_cap:
        key = f"torch_native:{window}:{has_soft_cap}"
    plan = kv_cache.scratch.get(key)
    if plan is None:
        plan = _build(kv_cache, window, has_soft_cap)
        kv_cache.scratch[key] = plan
    return plan


def decode_gather(kv_cache: KVCache, decode: DecodePlan) -> Gather:
    """The gather of the step's decode rows, built at the first layer that asks for it."""
    key = f"torch_native_gather:{decode.window}"
    gather = kv_cache.scratch.get(key)
    if gather is None:
        gather = _build_gather(kv_cache, decode)
        kv_cache.scratch[key] = gather
    return gather


def causal_mask(n_rows: int, kv_len: int, like: Tensor, window: int | None = None) -> Tensor:
    """[n_rows, kv_len] of 0 and -inf in like's dtype: row i sees keys up to kv_len - n_rows + i,
    with a window only the last `window` of them."""
    never = torch.full((n_rows, kv_len), float("-inf"), dtype=like.dtype, device=like.device)
    mask = never.triu(kv_len - n_rows + 1)
    return mask if window is None else mask + never.tril_(kv_len - n_rows - window)


def _build(kv_cache: KVCache, window: int | None, has_soft_cap: bool) -> StepPlan:
    seq_lens, q_lens = host_lens(kv_cache)
    decode = [i for i, q_len in enumerate(q_lens) if q_len == 1]
    first_rows = [0, *accumulate(q_lens)]
    prefill = tuple(
        _prefill_plan(kv_cache, i, first_rows[i], q_len, window, has_soft_cap)
        for i, q_len in enumerate(q_lens)
        if q_len > 1
    )
    if not decode:
        return StepPlan(None, prefill)
    if not prefill:
        whole = DecodePlan(
            None,
            kv_cache.req_pool_indices,
            kv_cache.kv_indptr,
            seq_lens,
            kv_cache.req_to_token,
            None,
        )
        return StepPlan(_windowed(whole, window), prefill)
    device = kv_cache.k_buffer.device
    decode_lens = tuple(seq_lens[i] for i in decode)
    part = DecodePlan(
        torch.tensor([first_rows[i] for i in decode], device=device),
        kv_cache.req_pool_indices[torch.tensor(decode, device=device)],
        torch.tensor([0, *accumulate(decode_lens)], dtype=torch.int32, device=device),
        decode_lens,
        kv_cache.req_to_token,
        None,
    )
    return StepPlan(_windowed(part, window), prefill)


def _windowed(decode: DecodePlan, window: int | None) -> DecodePlan:
    """The same rows over a table of their own, which holds the last `window` positions."""
    if window is None or max(decode.seq_lens) <= window:
        return decode
    device = decode.req_to_token.device
    lens = tuple(min(seq_len, window) for seq_len in decode.seq_lens)
    starts = torch.tensor(decode.seq_lens, device=device) - torch.tensor(lens, device=device)
    positions = starts.unsqueeze(1) + torch.arange(window, device=device)
    # Positions behind a shorter request are never read; kept within its row all the same.
    positions.clamp_(max=decode.req_to_token.shape[1] - 1)
    table = decode.req_to_token[decode.req_pool_indices.unsqueeze(1), positions]
    return DecodePlan(
        decode.rows,
        torch.arange(len(lens), dtype=torch.int32, device=device),
        torch.tensor([0, *accumulate(lens)], dtype=torch.int32, device=device),
        lens,
        table,
        window,
    )


def _build_gather(kv_cache: KVCache, decode: DecodePlan) -> Gather:
    n, max_len, min_len = len(decode.seq_lens), max(decode.seq_lens), min(decode.seq_lens)
    mask: Tensor | None = None
    if n == 1:
        own = _as_slots(decode.req_to_token[decode.req_pool_indices[0], :max_len])
        if isinstance(own, slice):
            return Gather(n, max_len, own, None, None, None)
        slots = own
    else:
        table = decode.req_to_token[:, :max_len].index_select(0, decode.req_pool_indices)
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
    kv_cache: KVCache,
    request: int,
    first_row: int,
    q_len: int,
    window: int | None,
    has_soft_cap: bool,
) -> PrefillPlan:
    seq_len = host_lens(kv_cache)[0][request]
    if window is not None and window >= seq_len:
        window = None
    slots = _as_slots(kv_cache.req_to_token[kv_cache.req_pool_indices[request], :seq_len])
    if q_len == seq_len and window is None and not has_soft_cap:
        # Nothing cached, every earlier key seen: the kernels' own causal order fits.
        tile = PrefillTile(slice(first_row, first_row + q_len), slice(0, seq_len), None)
        return PrefillPlan(slots, (tile,))
    tiles = []
    for begin in range(0, q_len, TILE_ROWS):
        end = min(begin + TILE_ROWS, q_len)
        last_key = seq_len - q_len + end
        first_key = 0 if window is None else max(0, seq_len - q_len + begin + 1 - window)
        mask = causal_mask(end - begin, last_key - first_key, kv_cache.k_buffer, window)
        rows = slice(first_row + begin, first_row + end)
        tiles.append(PrefillTile(rows, slice(first_key, last_key), mask))
    return PrefillPlan(slots, tuple(tiles))


def _as_slots(slots: Tensor) -> Tensor | slice:
    """Slots [n] of one request: a slice when they are one contiguous run, else int64 [n].

    A run is only looked for on the CPU: elsewhere reading the table would synchronise.
    """
    n = len(slots)
    if slots.device.type == "cpu":
        first = int(slots[0])
        if int(slots[-1]) - first == n - 1 and bool((slots.diff() == 1).all()):
            return slice(first, first + n)
    return slots.to(torch.int64)
