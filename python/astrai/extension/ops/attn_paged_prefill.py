"""The attn_paged_prefill kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C


def attn_paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    kv_indptr: Tensor,
    qo_indptr: Tensor,
    q_tile_to_batch: Tensor,
    q_tile_to_index: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    sm_scale: float | None = None,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    q_tile_rows: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: Tensor | None = None,
    splits: tuple[int, int, int] | None = None,
) -> Tensor:
    """Attend the packed new rows of every request over its paged KV.

    q: [total_q, n_heads, head_dim] bfloat16/float16 on a GPU, RoPE applied. k_cache, v_cache:
    [n_slots, n_kv_heads, head_dim] like q, the new rows' keys and values already in them; n_heads
    is a multiple of n_kv_heads. Rows start on 16 bytes, other strides are free. The index arrays
    are int32: req_to_token [n_reqs, max_ctx] the slot of each position, req_pool_indices [batch]
    its rows, kv_indptr and qo_indptr [batch + 1] prefix sums of the KV lengths and of the new rows,
    q_tile_to_batch and q_tile_to_index [n_tiles] the tiles of q_tile_rows rows that there are, in
    any order; a tile of a negative request is skipped.
    mask: not supported, must be None. is_causal: row i of a request's q_len sees keys up to
    kv_len - q_len + i. sm_scale: head_dim ** -0.5 when None. window: with is_causal, how many of
    the newest keys a row sees. soft_cap: scores become soft_cap * tanh(score / soft_cap).
    q_tile_rows: None means `_C.prefill_q_tile_rows(...)`. out: like q, allocated when None. lse:
    float32 [total_q, n_heads], filled with the natural log of the sum of exp(score).
    splits: (n_tiles, n_splits, split_len) of `_C.plan_prefill_splits`: the keys of the n_tiles last
    tiles are cut into up to n_splits splits of at least split_len, which different thread blocks
    attend. They need workspace: float32, `_C.prefill_workspace_size(...)` elements, overwritten.

    Returns out. A row that sees no key is 0 with lse -inf; rows of q that no tile covers are not
    written. Without splits a row's bits depend on its request's keys and its position alone: not
    on the batch, on tiles or on how the prompt was cut into chunks; splits change its rounding.
    Runs on the current stream. No autograd.
    Raises KernelUnavailableError when no kernel was built for (dtype, head_dim), ValueError for
    shapes, strides, devices or options that do not fit.
    Dao, FlashAttention-2, 2023; Shah et al., FlashAttention-3, 2024.
    """
    if mask is not None:
        raise ValueError(
            "attn_paged_prefill: mask is a tensor; accepted: None. Use is_causal and window, or "
            "select ATTN_BACKEND.TORCH_NATIVE."
        )
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _C.attn_paged_prefill(
        q,
        k_cache,
        v_cache,
        req_to_token,
        req_pool_indices,
        kv_indptr,
        qo_indptr,
        q_tile_to_batch,
        q_tile_to_index,
        out,
        is_causal,
        q.shape[-1] ** -0.5 if sm_scale is None else sm_scale,
        window or 0,
        soft_cap or 0.0,
        q_tile_rows or 0,
        lse,
        workspace,
        splits,
    )
    return out
