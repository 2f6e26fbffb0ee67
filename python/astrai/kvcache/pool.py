"""The KV cache of one model on one device: `_C.PagePool`'s bookkeeping, its memory, its step plans.

Single-threaded like `_C.PagePool`: the scheduler's thread owns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from astrai import _C

from .cache import KVCache, StepBatch
from .storage import KVStorage
from .table import RequestTable, int32_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_SPLIT_LEN = 512  # KV tokens per decode split: a function of kv_len alone keeps rows independent
_INT32_MAX = 2**31 - 1
_Workspace = tuple["Tensor | None", "Tensor | None", "Tensor | None"]


class PagePool:
    """Token slots for up to max_batch_size requests of up to max_seq_len tokens each.

    n_layers, n_kv_heads, head_dim: shape of one token's keys and values. n_heads: query heads;
    only the split-KV workspace needs it, which stays None without. n_tokens None is the contiguous
    mode (slot = req_idx * max_seq_len + position); a number is a paged pool of that many slots in
    pages of page_size, with prefix sharing when page_size > 1.

    host: the bookkeeping; storage: the key and value tensors; table: req_to_token of the device.
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
        self._plan = _C.BatchPlan(self.host, max_total_q, max_batch_size, _SPLIT_LEN)
        self._q_tile_rows = _q_tile_rows(n_heads, n_kv_heads, head_dim, dtype, self.device)
        # A request of len tokens has ceil(len / split) splits; the rounding adds one per request.
        n_splits = self.host.n_tokens // _SPLIT_LEN + max_batch_size
        self._n_heads, self._head_dim, self._dtype = n_heads, head_dim, dtype
        self._decode_workspace = self._allocate_workspace(n_splits)

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
        if start_pos is None:
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
        return self.plan_step(req_indices, starts, q_lens).kv_cache

    def plan_step(
        self, req_indices: Sequence[int], starts: Sequence[int], q_lens: Sequence[int]
    ) -> StepBatch:
        """All inputs of one forward: new tokens starts[i] .. starts[i] + q_lens[i] of each request.

        The index arrays are written to one buffer and reach the device in one copy, together with
        the table entries that changed. Raises ValueError naming a request whose tokens or slots do
        not exist.
        """
        capacity = self._plan.staging_size(sum(q_lens), len(q_lens))
        staging = torch.empty(capacity, dtype=torch.int32, pin_memory=self._is_pinned)
        layout = self._plan.build(
            req_indices,
            starts,
            q_lens,
            staging=int32_view(staging),
            q_tile_rows=self._q_tile_rows,
        )
        words = self._to_device(staging[: layout.n_int32], layout.dirty_spans)
        sections = layout.sections

        def section(name: str) -> Tensor:
            offset, length = sections[name]
            return words[offset : offset + length]

        is_decode = layout.max_q_len == 1
        decode_o_part, decode_ml_part, decode_out = self._workspace_for(layout.n_splits)
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
            decode_split_indptr=section("decode_split_indptr"),
            q_tile_rows=self._q_tile_rows,
            page_size=self._page_size,
            max_q_len=layout.max_q_len,
            seq_lens_cpu=tuple(start + n for start, n in zip(starts, q_lens, strict=True)),
            q_lens_cpu=tuple(q_lens),
        )
        return StepBatch(
            input_ids=section("token_ids").to(torch.int64),
            position_ids=section("position_ids").to(torch.int64),
            logits_indices=section("logits_indices").to(torch.int64),
            kv_cache=kv_cache,
            is_decode=is_decode,
        )

    @property
    def _is_pinned(self) -> bool:
        return self.device.type == "cuda"

    def _to_device(self, words: Tensor, dirty_spans: Sequence[tuple[int, int, int]]) -> Tensor:
        """words on the pool's device, the device table brought up to date with the same copy.

        The pinned source may be dropped while the copy runs: torch's host allocator does not reuse
        it before the copy is done.
        """
        if self.device.type == "cpu":
            return words
        n, n_update = words.numel(), self.table.n_update_int32(dirty_spans)
        if n_update:
            joined = torch.empty(n + n_update, dtype=torch.int32, pin_memory=self._is_pinned)
            joined[:n] = words
            self.table.write_update(dirty_spans, joined[n:])
            words = joined
        on_device = words.to(self.device, non_blocking=True)
        if n_update:
            self.table.apply_update(on_device[n:])
        return on_device[:n]

    def _workspace_for(self, n_splits: int) -> _Workspace:
        """The split-KV workspace, made larger when requests that share slots have more splits."""
        o_part = self._decode_workspace[0]
        if o_part is not None and n_splits > len(o_part):
            self._decode_workspace = self._allocate_workspace(n_splits)
        return self._decode_workspace

    def _allocate_workspace(self, n_splits: int) -> _Workspace:
        if self._n_heads is None:
            return None, None, None
        shape = (self._n_heads, self._head_dim)
        return (
            torch.empty(n_splits, *shape, device=self.device),
            torch.empty(n_splits, self._n_heads, 2, device=self.device),
            torch.empty(self.host.max_batch_size, *shape, dtype=self._dtype, device=self.device),
        )


def _q_tile_rows(
    n_heads: int | None, n_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Query rows per tile of the prefill kernel that would run."""
    return _C.prefill_q_tile_rows(n_heads or n_kv_heads, n_kv_heads, head_dim, dtype, device)
