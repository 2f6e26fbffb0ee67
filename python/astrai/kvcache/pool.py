"""The KV cache of one model on one device: `_C.PagePool`'s bookkeeping, its memory, its step plans.

Single-threaded like `_C.PagePool`: the scheduler's thread owns it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from astrai import _C

from .cache import KVCache, StepBatch
from .storage import KVStorage
from .table import RequestTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .host_staging import HostStaging

_SPLIT_LEN = 512  # KV tokens per decode split: fixed, so that a row depends on its request alone
_SPREAD_SPLITS = 512  # more of them fill any device unshared
_INT32_MAX = 2**31 - 1
_Workspace = tuple["Tensor | None", "Tensor | None", "Tensor | None"]


class PagePool:
    """Token slots for up to max_batch_size requests of up to max_seq_len tokens each.

    n_layers, n_kv_heads, head_dim: shape of one token's keys and values. n_heads: query heads;
    only the split-KV workspaces need it, which stay None without. n_tokens None is the contiguous
    mode (slot = req_idx * max_seq_len + position); a number is a paged pool of that many slots in
    pages of page_size, with prefix sharing when page_size > 1. splits_prefill: on a GPU, steps with
    few rows of prompts over long keys may spread them over the device, by a workspace; False keeps
    each row's attention the same to the bit in every step.

    host: the bookkeeping; storage: the key and value tensors; table: req_to_token of the device;
    plan: writes the index arrays of a step.
    Raises ValueError on sizes that are not positive or that int32 slot indices cannot reach.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        max_batch_size: int,
        max_seq_len: int,
        device: torch.device | str,
        dtype: torch.dtype,
        page_size: int = 1,
        n_tokens: int | None = None,
        n_heads: int | None = None,
        splits_prefill: bool = True,
    ) -> None:
        if max_batch_size * max_seq_len > _INT32_MAX:
            raise ValueError(
                f"PagePool: max_batch_size {max_batch_size} * max_seq_len {max_seq_len} exceeds "
                f"the int32 slot index limit {_INT32_MAX}; lower one of them"
            )
        self.device = torch.device(device)
        self.host = _C.PagePool(max_batch_size, max_seq_len, page_size, n_tokens)
        # A row's own run of slots is the page of the contiguous mode.
        self._page_size = max_seq_len if n_tokens is None else page_size
        # One slot more than requests can own: the reserved slot that padding rows write to.
        size = self.host.n_tokens + 1
        self.storage = KVStorage(size, n_layers, n_kv_heads, head_dim, self.device, dtype)
        self.k_buffer = self.storage.k_buffer
        self.v_buffer = self.storage.v_buffer
        self.table = RequestTable(self.host, self.device)
        max_total_q = max_batch_size * max_seq_len
        self.plan = _C.BatchPlan(self.host, max_total_q, max_batch_size, _SPLIT_LEN)
        self.stack_len = _C.decode_stack_len(n_heads or n_kv_heads, n_kv_heads, head_dim)
        self.q_tile_rows = _q_tile_rows(n_heads, n_kv_heads, head_dim, dtype, self.device)
        self._decode_workspace = self._allocate_workspace(n_heads, head_dim, dtype)
        self._n_multiprocessors = _n_multiprocessors(self.device)
        self._prefill_workspace: Tensor | None = None
        if splits_prefill and n_heads is not None:
            n = prefill_workspace_size(n_heads, n_kv_heads, head_dim, dtype, self.device)
            self._prefill_workspace = torch.empty(n, device=self.device) if n else None

        # Transactions and queries of the bookkeeping; contracts in cpp/include/astrai/page_pool.h.
        self.admit = self.host.admit
        self.can_admit = self.host.can_admit
        self.fits = self.host.fits
        self.extend = self.host.extend
        self.extend_batch = self.host.extend_batch
        self.append = self.host.append
        self.append_batch = self.host.append_batch
        self.commit = self.host.commit
        self.release = self.host.release
        self.tokens = self.host.tokens
        self.stats = self.host.stats
        self.flush_cache = self.host.flush_cache
        self.snapshot = self.host.snapshot
        self.check_integrity = self.host.check_integrity

    def bind_tasks(
        self,
        req_indices: Sequence[int],
        seq_lens: Sequence[int],
        start_pos: int | Sequence[int] | None = None,
    ) -> KVCache:
        """The cache arguments of one forward.

        req_indices: admitted requests. seq_lens: their lengths after this step's tokens; slots and
        token ids up to there exist already. start_pos: first new position, one for all or one
        each; None is decode, one new token per request.
        Raises ValueError when the arguments' lengths differ or a start is not below its seq_len.
        """
        n_decode = None
        if start_pos is None:
            n_decode = len(req_indices)
            starts = [seq_len - 1 for seq_len in seq_lens]
        elif isinstance(start_pos, int):
            starts = [start_pos] * len(seq_lens)
        else:
            starts = list(start_pos)
        if not len(req_indices) == len(seq_lens) == len(starts):
            raise ValueError(
                f"bind_tasks: {len(req_indices)} req_indices, {len(seq_lens)} seq_lens and "
                f"{len(starts)} start_pos; one of each per request is needed"
            )
        q_lens = [seq_len - start for seq_len, start in zip(seq_lens, starts, strict=True)]
        for req_idx, seq_len, start, q_len in zip(
            req_indices, seq_lens, starts, q_lens, strict=True
        ):
            if q_len < 1 or start < 0:
                raise ValueError(
                    f"bind_tasks: request {req_idx} has seq_len {seq_len} and start_pos {start}; "
                    "prefill sequence lengths must exceed start_pos, which is at least 0"
                )
        return self.plan_step(req_indices, starts, q_lens, n_decode).kv_cache

    def plan_step(
        self,
        req_indices: Sequence[int],
        starts: Sequence[int],
        q_lens: Sequence[int],
        n_decode: int | None = None,
        rope_offsets: Sequence[int] | None = None,
        staging: HostStaging | None = None,
    ) -> StepBatch:
        """All inputs of one forward: new tokens starts[i] .. starts[i] + q_lens[i] of each request.

        n_decode: how many requests, the first ones, decode: their one new token is generated and
        not part of a prompt. It decides which kernel attends a row, so that its result does not
        depend on the other requests of the step. None: all if each has one new token, else none.
        rope_offsets: what is added to the positions of each request, which serve to look up their
        rotation alone.
        staging: takes what travels to a GPU, and must not be reset before it has arrived; None
        waits for the copy.

        The index arrays are written to one buffer and reach the device in one copy, together with
        the table entries that changed. Raises ValueError naming a request whose tokens or slots do
        not exist, or that decodes more than one token.
        """
        capacity = self.plan.staging_size(sum(q_lens), len(q_lens), most_splits(starts))
        staged = _int32(capacity, staging)
        self.table.catch_up()
        layout = self.plan.build(
            req_indices,
            starts,
            q_lens,
            staging=staged.numpy(),
            q_tile_rows=self.q_tile_rows,
            n_decode=n_decode,
            stack_len=self.stack_len,
        )
        self.table.expect(layout.dirty_spans)
        if rope_offsets is not None:
            add_rope_offsets(layout, staged, rope_offsets, q_lens)
        words = self._to_device(staged[: layout.n_int32], layout.dirty_spans, staging)
        seq_lens = tuple(start + n for start, n in zip(starts, q_lens, strict=True))
        batch = self.batch_of(layout, words, (seq_lens, tuple(q_lens)))
        return replace(
            batch,
            input_ids=batch.input_ids.to(torch.int64),
            position_ids=batch.position_ids.to(torch.int64),
            logits_indices=batch.logits_indices.to(torch.int64),
        )

    def batch_of(
        self,
        layout: _C.Layout,
        words: Tensor,
        host_lens: tuple[tuple[int, ...], tuple[int, ...]] | None,
    ) -> StepBatch:
        """The step whose plan lies in words, int32 on the pool's device; its tensors are views.

        decode_units, the last of them, takes all of words that is left. host_lens: seq_lens and
        q_lens; None for words that later steps of this layout overwrite.
        """
        sections = layout.sections

        def section(name: str) -> Tensor:
            offset, length = sections[name]
            return words[offset : offset + length]

        n_decode = layout.n_decode
        is_decode, is_planned = n_decode == layout.n_rows, n_decode > 1
        decode_o_part, decode_ml_part, decode_out = self._decode_workspace
        seq_lens_cpu, q_lens_cpu = (None, None) if host_lens is None else host_lens
        kv_cache = KVCache(
            k_buffer=self.k_buffer,
            v_buffer=self.v_buffer,
            req_to_token=self.table.device,
            req_pool_indices=section("req_pool_indices"),
            seq_lens=section("seq_lens"),
            out_cache_loc=section("out_cache_loc"),
            max_len=layout.max_len,
            kv_indptr=section("kv_indptr"),
            qo_indptr=section("qo_indptr"),
            q_tile_to_batch=None if is_decode else section("q_tile_to_batch"),
            q_tile_to_index=None if is_decode else section("q_tile_to_index"),
            decode_o_part=decode_o_part,
            decode_ml_part=decode_ml_part,
            decode_out=decode_out,
            prefill_workspace=self._prefill_workspace,
            n_multiprocessors=self._n_multiprocessors,
            decode_split_indptr=section("decode_split_indptr"),
            decode_members=section("decode_members").view(-1, 4) if is_planned else None,
            decode_n_units=section("decode_n_units") if is_planned else None,
            decode_units=words[sections["decode_units"][0] :].view(-1, 2) if is_planned else None,
            decode_stack_len=self.stack_len if layout.has_shared else 1,
            n_decode=n_decode,
            q_tile_rows=self.q_tile_rows,
            page_size=self._page_size,
            max_q_len=layout.max_q_len,
            seq_lens_cpu=seq_lens_cpu,
            q_lens_cpu=q_lens_cpu,
        )
        return StepBatch(
            input_ids=section("token_ids"),
            position_ids=section("position_ids"),
            logits_indices=section("logits_indices"),
            kv_cache=kv_cache,
            is_decode=is_decode,
        )

    def send_update(self, dirty_spans: _C.DirtySpans, staging: HostStaging) -> None:
        """Bring the device's table up to date with these spans by a copy of their own."""
        update = staging.take(self.table.n_update_int32(dirty_spans), torch.int32)
        self.table.write_update(dirty_spans, update)
        self.table.apply_update(update.to(self.device, non_blocking=True))

    def _to_device(
        self, words: Tensor, dirty_spans: _C.DirtySpans, staging: HostStaging | None
    ) -> Tensor:
        """words on the pool's device, the device table brought up to date with the same copy."""
        if self.device.type == "cpu":
            return words
        n, n_update = words.numel(), self.table.n_update_int32(dirty_spans)
        if n_update:
            joined = _int32(n + n_update, staging)
            joined[:n] = words
            self.table.write_update(dirty_spans, joined[n:])
            words = joined
        on_device = words.to(self.device, non_blocking=staging is not None)
        if n_update:
            self.table.apply_update(on_device[n:])
        return on_device[:n]

    def _allocate_workspace(
        self, n_heads: int | None, head_dim: int, dtype: torch.dtype
    ) -> _Workspace:
        """decode_o_part, decode_ml_part and decode_out for any step: a captured graph keeps
        them."""
        if n_heads is None:
            return None, None, None
        max_batch_size = self.host.max_batch_size
        has_sharing = not self.host.contiguous and self.host.page_size > 1
        n_splits = max_decode_splits(
            max_batch_size, self.host.max_seq_len, None if has_sharing else self.host.n_tokens
        )
        shape = (n_heads, head_dim)
        return (
            torch.empty(n_splits, *shape, device=self.device),
            torch.empty(n_splits, n_heads, 2, device=self.device),
            torch.empty(max_batch_size, *shape, dtype=dtype, device=self.device),
        )


def add_rope_offsets(
    layout: _C.Layout, words: Tensor, rope_offsets: Sequence[int], q_lens: Sequence[int]
) -> None:
    """Add to the positions of a plan in words what belongs to each request, in place."""
    begin, _ = layout.sections["position_ids"]
    added = torch.tensor(rope_offsets, dtype=torch.int32)
    added = added.repeat_interleave(torch.tensor(q_lens))
    words[begin : begin + len(added)] += added


def most_splits(starts: Sequence[int]) -> int:
    """KV splits of one new token at each of these positions, at most."""
    return sum(starts) // _SPLIT_LEN + len(starts)


def max_decode_splits(max_batch_size: int, max_seq_len: int, n_tokens: int | None = None) -> int:
    """Rows of the decode workspace, each of n_heads * (head_dim + 2) float32: one for each KV split
    that the requests of a step can have, and up to four where these are few, for a split that
    thread blocks share.

    n_tokens: slots of a pool in which no two requests share any; None when they may, and then
    every request can have max_seq_len tokens whatever the pool's size.
    """
    n_splits = max_batch_size * -(-max_seq_len // _SPLIT_LEN)
    if n_tokens is not None:
        # A request of len tokens has ceil(len / split) splits; the rounding adds one per request.
        n_splits = min(n_splits, n_tokens // _SPLIT_LEN + max_batch_size)
    return max(n_splits, min(4 * n_splits, _SPREAD_SPLITS))


def _int32(n: int, staging: HostStaging | None) -> Tensor:
    """[n] of staging, or memory of their own."""
    return torch.empty(n, dtype=torch.int32) if staging is None else staging.take(n, torch.int32)


def prefill_workspace_size(
    n_heads: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> int:
    """float32 elements of `KVCache.prefill_workspace`; 0 where no kernel would use it."""
    kernels = _C.compiled_instances().get("attn_paged_prefill", [])
    if device.type != "cuda" or (str(dtype).removeprefix("torch."), head_dim) not in kernels:
        return 0
    q_tile_rows = _q_tile_rows(n_heads, n_kv_heads, head_dim, dtype, device)
    return _C.prefill_workspace_size(
        q_tile_rows, n_heads, n_kv_heads, head_dim, _n_multiprocessors(device)
    )


def _n_multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 without one."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 1
    n: int = torch.cuda.get_device_properties(device).multi_processor_count
    return n


def _q_tile_rows(
    n_heads: int | None, n_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Query rows per tile of the prefill kernel that would run."""
    return _C.prefill_q_tile_rows(n_heads or n_kv_heads, n_kv_heads, head_dim, dtype, device)
