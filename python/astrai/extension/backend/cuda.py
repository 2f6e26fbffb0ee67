"""CudaBackend: the compiled paged kernels, which read the pool in place through the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from astrai import _C, requirements
from astrai.extension import ops

from .base import AttentionBackend, AttentionBackendFactory, AttentionCall
from .cache_io import host_lens, layer_kv

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache

_TILE_ROWS = 64  # of the tiles made for a cache that comes without; the kernel takes any number
_KERNELS = {"decode": "attn_paged_decode", "prefill": "attn_paged_prefill"}


@AttentionBackendFactory.register
class CudaBackend(AttentionBackend):
    """attn_paged_decode and attn_paged_prefill; no gather."""

    name: ClassVar[str] = "cuda"
    reads_written_kv: ClassVar[bool] = True
    options: ClassVar[frozenset[str]] = frozenset({"window", "soft_cap"})

    def unavailable_reason(self) -> str | None:
        for kernel in _KERNELS.values():
            reason = ops.unavailable_reason(kernel)
            if reason is not None:
                return reason
        return None if torch.cuda.is_available() else requirements.no_gpu_reason()

    def supports(self, call: AttentionCall) -> str | None:
        if call.device_type != "cuda":
            return f"the kernels run on cuda, not on {call.device_type}"
        if not call.has_cache or call.fwd not in _KERNELS:
            return "the kernels need a kv_cache and fwd 'prefill' or 'decode'"
        if call.needs_grad:
            return "the kernels have no backward; use torch.no_grad() or another backend"
        if call.has_mask:
            return "the kernels take no attn_mask"
        if call.n_heads % call.n_kv_heads != 0:
            return f"n_heads {call.n_heads} is not a multiple of n_kv_heads {call.n_kv_heads}"
        return ops.unavailable_reason(_KERNELS[call.fwd], call.dtype, call.head_dim)

    def fwd_prefill(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        kv_cache: KVCache | None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        sm_scale: float | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Prompt rows by attn_paged_prefill, and the first n_decode rows as `fwd_decode` would.

        Without `prefill_workspace` a row's bits do not depend on who else is in the step; with it
        prompt rows may be attended in splits that do."""
        cache = _require_cache(kv_cache)
        n = cache.n_decode
        out = cache.prefill_out
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if n > 0:
            new_k, new_v = (None, None) if k is None or v is None else (k[:n], v[:n])
            _decode_rows(cache, layer_id, q[:n], new_k, new_v, sm_scale, window, soft_cap, out[:n])
        if n == cache.req_pool_indices.shape[0]:
            return out
        q_tile_to_batch, q_tile_to_index, q_tile_rows = query_tiles(cache)
        splits = _prefill_splits(cache, q.shape[1], window)
        k_cache, v_cache = layer_kv(cache, layer_id)
        if k is not None and v is not None:
            ops.store_kv(k[n:], v[n:], k_cache, v_cache, cache.out_cache_loc[n:])
        return ops.attn_paged_prefill(
            q,
            k_cache,
            v_cache,
            cache.req_to_token,
            cache.req_pool_indices,
            cache.kv_indptr,
            cache.qo_indptr,
            q_tile_to_batch,
            q_tile_to_index,
            is_causal=True,
            sm_scale=sm_scale,
            window=window,
            soft_cap=soft_cap,
            q_tile_rows=q_tile_rows,
            out=out,
            workspace=cache.prefill_workspace,
            splits=splits,
        )

    def fwd_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        kv_cache: KVCache | None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        sm_scale: float | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        cache = _require_cache(kv_cache)
        return _decode_rows(cache, layer_id, q, k, v, sm_scale, window, soft_cap, cache.decode_out)

    @staticmethod
    def supports_graph() -> bool:
        return True


def _decode_rows(
    cache: KVCache,
    layer_id: int,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    sm_scale: float | None,
    window: int | None,
    soft_cap: float | None,
    out: Tensor | None,
) -> Tensor:
    """The first len(q) requests of the step, each with its one row of q, k and v."""
    k_cache, v_cache = layer_kv(cache, layer_id)
    req_pool_indices, kv_indptr = _decode_indices(cache, q.shape[0])
    return ops.attn_paged_decode(
        q,
        k_cache,
        v_cache,
        cache.req_to_token,
        req_pool_indices,
        kv_indptr,
        new_k=k,
        new_v=v,
        sm_scale=sm_scale,
        o_part_buf=cache.decode_o_part,
        ml_part_buf=cache.decode_ml_part,
        out_buf=out,
        split_indptr=cache.decode_split_indptr,
        window=window,
        soft_cap=soft_cap,
        members=cache.decode_members,
        n_units=cache.decode_n_units,
        units=cache.decode_units,
        stack_len=cache.decode_stack_len,
        # What a layer launches ahead of attention makes q, k and v; the plan is older.
        is_plan_settled=cache.decode_split_indptr is not None,
    )


def _decode_indices(cache: KVCache, n: int) -> tuple[Tensor, Tensor]:
    """req_pool_indices and kv_indptr of the first n requests, cut once per step."""
    cut: tuple[Tensor, Tensor] | None = cache.scratch.get("cuda_decode_indices")
    if cut is None or len(cut[0]) != n:
        cut = (cache.req_pool_indices[:n], cache.kv_indptr[: n + 1])
        cache.scratch["cuda_decode_indices"] = cut
    return cut


def _prefill_splits(
    cache: KVCache, n_heads: int, window: int | None
) -> tuple[int, int, int] | None:
    """How the keys of this step's prompt rows are spread, planned once for each window."""
    lens, q_lens = cache.seq_lens_cpu, cache.q_lens_cpu
    if cache.prefill_workspace is None or cache.q_tile_rows is None or lens is None:
        return None
    if cache.q_tile_to_batch is None or q_lens is None:  # tiles that are not in the plan's order
        return None
    plans: dict[int | None, tuple[int, int, int]] = cache.scratch.setdefault("cuda_splits", {})
    if window not in plans:
        plans[window] = _C.plan_prefill_splits(
            q_lens[cache.n_decode :],
            lens[cache.n_decode :],
            cache.q_tile_rows,
            n_heads,
            cache.k_buffer.shape[2],
            window or 0,
            cache.n_multiprocessors,
        )
    return plans[window]


def query_tiles(cache: KVCache) -> tuple[Tensor, Tensor, int | None]:
    """q_tile_to_batch, q_tile_to_index and their rows: the plan's, or made once per step for the
    requests that do not decode."""
    if cache.q_tile_to_batch is not None and cache.q_tile_to_index is not None:
        return cache.q_tile_to_batch, cache.q_tile_to_index, cache.q_tile_rows
    tiles: tuple[Tensor, Tensor] | None = cache.scratch.get("cuda_query_tiles")
    if tiles is None:
        pairs = [
            (request, tile)
            for request, q_len in enumerate(host_lens(cache)[1])
            if request >= cache.n_decode
            for tile in range(-(-q_len // _TILE_ROWS))
        ]
        columns = torch.tensor(pairs, dtype=torch.int32).view(-1, 2).T.contiguous()
        on_device = columns.to(cache.kv_indptr.device)
        tiles = (on_device[0], on_device[1])
        cache.scratch["cuda_query_tiles"] = tiles
    return *tiles, _TILE_ROWS


def _require_cache(kv_cache: KVCache | None) -> KVCache:
    if kv_cache is None:
        raise ValueError("attention: the CUDA backend attends packed rows over a kv_cache; pass it")
    return kv_cache
