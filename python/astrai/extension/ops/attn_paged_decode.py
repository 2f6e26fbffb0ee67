"""The attn_paged_decode kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C

SPLIT_LEN = 512  # KV tokens of one split, as `_C.BatchPlan` plans them
SPREAD_SPLITS = 512  # a workspace of more is not enlarged to spread few splits


def attn_paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    kv_indptr: Tensor,
    new_k: Tensor | None = None,
    new_v: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    o_part_buf: Tensor | None = None,
    ml_part_buf: Tensor | None = None,
    out_buf: Tensor | None = None,
    sm_scale: float | None = None,
    *,
    split_indptr: Tensor | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    lse: Tensor | None = None,
    split_len: int = SPLIT_LEN,
    members: Tensor | None = None,
    n_units: Tensor | None = None,
    units: Tensor | None = None,
    stack_len: int = 1,
    is_plan_settled: bool = False,
) -> Tensor:
    """Attend one new token per request over its paged KV, read in place.

    q: [batch, n_heads, head_dim] bfloat16/float16 on a GPU, RoPE applied. k_cache, v_cache:
    [n_slots, n_kv_heads, head_dim] like q; n_heads is a multiple of n_kv_heads. Rows start on 16
    bytes, other strides are free. int32: req_to_token [n_reqs, max_len] the slot of each position,
    req_pool_indices [batch] its row, kv_indptr [batch + 1] prefix sum of the KV lengths, this
    step's token included. new_k, new_v: [batch, n_kv_heads, head_dim] this step's rows, used for
    each request's last position and written to its slot in k_cache, v_cache; None: they are there.

    The KV of a request is cut into splits of split_len (128, 256, 384 or 512) tokens.
    split_indptr: int32 [batch + 1], prefix sum of max(1, ceil(KV length / split_len)). o_part_buf,
    ml_part_buf: float32 workspace [n, n_heads, head_dim] and [n, n_heads, 2], n >= the number of
    splits, four times as many to spread a few splits over more multiprocessors; the three are made
    when None. out_buf: [batch or more, n_heads, head_dim] like q.
    window: only the last `window` positions are seen. soft_cap: logits become
    soft_cap * tanh(logit / soft_cap). sm_scale: head_dim ** -0.5 when None. lse: float32
    [batch, n_heads], filled with the natural log of the sum of exp(logit). mask: not supported.
    is_causal: adds nothing, the token is the last.

    members [batch, 4], n_units [2] and units [n, 2], int32: the work as `_C.BatchPlan` plans it, in
    which requests that share slots share it, in stacks of stack_len requests, at most
    `_C.decode_stack_len(...)`. n_units is their number and a counter, 0 before and after. Not used
    with a window. is_plan_settled: the index arrays and the
    table were complete before the kernel ahead of this call on the stream began; they are read
    while it runs.

    Returns out. A request without KV gives 0 with lse -inf. The bits of a row depend on its request
    alone. With every buffer given nothing is allocated and the call may be captured into a CUDA
    graph, to be replayed with other lengths. Runs on the current stream. No autograd.
    Raises KernelUnavailableError when no kernel was built for (dtype, head_dim), ValueError for
    shapes, strides, devices or options that do not fit.
    Split-KV merge: Dao et al., Flash-Decoding, 2023.
    """
    if mask is not None:
        raise ValueError(
            "attn_paged_decode: mask is a tensor; accepted: None. Use window, or select "
            "ATTN_BACKEND.TORCH_NATIVE."
        )
    batch = q.shape[0]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out_buf is None else out_buf
    if split_indptr is None:
        split_indptr = _split_indptr(kv_indptr, split_len)
    if o_part_buf is None or ml_part_buf is None:
        # The lengths are on the device: room for every request to fill its row of the table.
        n_splits = batch * max(1, -(-req_to_token.shape[-1] // max(split_len, 1)))
        n_splits = max(n_splits, min(4 * n_splits, SPREAD_SPLITS))
        o_part_buf = q.new_empty((n_splits, *q.shape[1:]), dtype=torch.float32)
        ml_part_buf = q.new_empty((n_splits, q.shape[1], 2), dtype=torch.float32)
    _C.attn_paged_decode(
        q,
        k_cache,
        v_cache,
        req_to_token,
        req_pool_indices,
        kv_indptr,
        split_indptr,
        o_part_buf,
        ml_part_buf,
        out if out.shape[0] == batch else out[:batch],
        new_k,
        new_v,
        lse,
        q.shape[-1] ** -0.5 if sm_scale is None else sm_scale,
        soft_cap or 0.0,
        window or 0,
        split_len,
        members,
        n_units,
        units,
        stack_len,
        is_plan_settled,
    )
    return out if out.shape[0] == batch else out[:batch]


def _split_indptr(kv_indptr: Tensor, split_len: int) -> Tensor:
    """int32 [batch + 1] prefix sum of each request's splits, without waiting for the device."""
    n_splits = kv_indptr.diff().add_(split_len - 1).div_(split_len, rounding_mode="floor")
    indptr = torch.zeros_like(kv_indptr, dtype=torch.int32)
    torch.cumsum(n_splits.clamp_(min=1), 0, dtype=torch.int32, out=indptr[1:])
    return indptr
