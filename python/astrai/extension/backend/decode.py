"""Decode rows in TorchNativeBackend: the compiled CPU kernel, or SDPA over a gather."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from astrai import _C

from .soft_cap import dot_product_attention
from .step_plan import decode_gather

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache

    from .step_plan import DecodePlan

_KERNEL_DTYPES = (torch.float32, torch.bfloat16)


def cpu_kernel_runs(q: Tensor) -> bool:
    """Whether `_C.cpu_paged_decode` takes these rows. It has no backward."""
    return (
        q.device.type == "cpu"
        and q.dtype in _KERNEL_DTYPES
        and q.shape[-1] % 16 == 0
        and not (q.requires_grad and torch.is_grad_enabled())
    )


def kernel_decode(
    decode: DecodePlan,
    q: Tensor,
    kv_cache: KVCache,
    layer_id: int,
    sm_scale: float | None,
    soft_cap: float | None,
    new_k: Tensor | None = None,
    new_v: Tensor | None = None,
) -> Tensor:
    """q [n, n_heads, head_dim] over the pool in place, after writing new_k and new_v if given."""
    out = q.new_empty(q.shape)
    _C.cpu_paged_decode(
        _with_contiguous_heads(q),
        kv_cache.k_buffer[layer_id],
        kv_cache.v_buffer[layer_id],
        decode.req_to_token,
        decode.req_pool_indices,
        decode.kv_indptr,
        out,
        None if new_k is None else _with_contiguous_heads(new_k),
        None if new_v is None else _with_contiguous_heads(new_v),
        sm_scale=q.shape[-1] ** -0.5 if sm_scale is None else sm_scale,
        soft_cap=soft_cap or 0.0,
    )
    return out


def gather_decode(
    decode: DecodePlan,
    q: Tensor,
    kv_cache: KVCache,
    layer_id: int,
    sm_scale: float | None,
    soft_cap: float | None,
) -> Tensor:
    """q [n, n_heads, head_dim] over gathered keys and values; this step's are in the pool already.

    The query heads of a group stand in for query positions, so a KV head is read once for all.
    """
    gather = decode_gather(kv_cache, decode)
    k_layer, v_layer = kv_cache.k_buffer[layer_id], kv_cache.v_buffer[layer_id]
    n_heads, head_dim = q.shape[1:]
    n_kv_heads = k_layer.shape[1]
    if isinstance(gather.slots, slice):
        k, v = k_layer[gather.slots], v_layer[gather.slots]
    else:
        k = torch.index_select(k_layer.flatten(1), 0, gather.slots, out=gather.k_rows)
        v = torch.index_select(v_layer.flatten(1), 0, gather.slots, out=gather.v_rows)
    kv_shape = (gather.n, gather.max_len, n_kv_heads, head_dim)
    out = dot_product_attention(
        q.reshape(gather.n, n_kv_heads, n_heads // n_kv_heads, head_dim),
        k.view(kv_shape).transpose(1, 2),
        v.view(kv_shape).transpose(1, 2),
        gather.mask,
        False,
        sm_scale,
        soft_cap,
    )
    return out.reshape(gather.n, n_heads, head_dim)


def _with_contiguous_heads(x: Tensor) -> Tensor:
    """x [n, heads, head_dim] with any stride between rows, as the kernel takes it."""
    is_packed = x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return x if is_packed else x.contiguous()
