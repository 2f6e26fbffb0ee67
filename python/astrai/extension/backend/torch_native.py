"""TorchNativeBackend: scaled_dot_product_attention over slots gathered from the pool.

Runs everywhere and takes every dtype and head size, so it is the last fallback. Decode rows of
common dtypes go to a compiled kernel on the CPU. Grouped queries never copy keys or values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from .base import AttentionBackend, AttentionBackendFactory, AttentionCall, given_options
from .cache_io import write_kv
from .decode import cpu_kernel_runs, gather_decode, kernel_decode
from .key_mask import masked_packed_attention
from .soft_cap import dot_product_attention
from .step_plan import PrefillPlan, StepPlan, causal_mask, step_plan

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache


@AttentionBackendFactory.register
class TorchNativeBackend(AttentionBackend):
    """SDPA with an indirect gather of the KV cache, batched over requests in decode."""

    name: ClassVar[str] = "torch_native"
    reads_written_kv: ClassVar[bool] = True
    options: ClassVar[frozenset[str]] = frozenset({"window", "soft_cap"})

    def unavailable_reason(self) -> str | None:
        return None

    def supports(self, call: AttentionCall) -> str | None:
        if call.n_heads % call.n_kv_heads != 0:
            return f"n_heads {call.n_heads} is not a multiple of n_kv_heads {call.n_kv_heads}"
        if call.has_cache and call.has_mask and given_options(call.window, call.soft_cap):
            return "with a kv_cache it takes attn_mask or window and soft_cap, not both"
        return None

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
        if kv_cache is None:
            assert k is not None and v is not None  # `attention` has checked
            return _dense(q, k, v, attn_mask, is_causal, sm_scale, window, soft_cap)
        if attn_mask is not None:
            write_kv(kv_cache, layer_id, k, v)
            return masked_packed_attention(q, kv_cache, layer_id, attn_mask, sm_scale)
        plan = step_plan(kv_cache, window, soft_cap is not None)
        is_decode = plan.decode is not None and plan.decode.rows is None
        if plan.decode is not None and is_decode and cpu_kernel_runs(q):
            return kernel_decode(plan.decode, q, kv_cache, layer_id, sm_scale, soft_cap, k, v)
        write_kv(kv_cache, layer_id, k, v)
        if plan.decode is not None and is_decode:
            return gather_decode(plan.decode, q, kv_cache, layer_id, sm_scale, soft_cap)
        return _ragged(plan, q, kv_cache, layer_id, sm_scale, soft_cap)


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    sm_scale: float | None,
    window: int | None,
    soft_cap: float | None,
) -> Tensor:
    """[batch, seq_len, heads, head_dim] with autograd; causal order is aligned at the last key."""
    q_len, kv_len = q.shape[1], k.shape[1]
    takes_order = soft_cap is None and (window is None or window >= kv_len)
    if is_causal and (attn_mask is not None or q_len != kv_len or not takes_order):
        order = causal_mask(q_len, kv_len, q, window)
        if attn_mask is None:
            attn_mask = order
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & (order == 0)
        else:
            attn_mask = attn_mask + order
        is_causal = False
    out = dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask,
        is_causal,
        sm_scale,
        soft_cap,
    )
    return out.transpose(1, 2)


def _ragged(
    plan: StepPlan,
    q: Tensor,
    kv_cache: KVCache,
    layer_id: int,
    sm_scale: float | None,
    soft_cap: float | None,
) -> Tensor:
    """A step with prefill rows, and perhaps decode rows. The new keys and values are written."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if plan.decode is not None and plan.decode.rows is not None:
        rows = plan.decode.rows
        if cpu_kernel_runs(q):
            out[rows] = kernel_decode(plan.decode, q[rows], kv_cache, layer_id, sm_scale, soft_cap)
        else:
            out[rows] = gather_decode(plan.decode, q[rows], kv_cache, layer_id, sm_scale, soft_cap)
    for request in plan.prefill:
        _prefill(request, q, kv_cache, layer_id, out, sm_scale, soft_cap)
    return out


def _prefill(
    request: PrefillPlan,
    q: Tensor,
    kv_cache: KVCache,
    layer_id: int,
    out: Tensor,
    sm_scale: float | None,
    soft_cap: float | None,
) -> None:
    """Write the attention of one request's new tokens to its packed rows of out."""
    k = kv_cache.k_buffer[layer_id][request.slots]  # [seq_len, n_kv_heads, head_dim]
    v = kv_cache.v_buffer[layer_id][request.slots]
    for tile in request.tiles:
        tile_k, tile_v = k[tile.keys], v[tile.keys]
        out[tile.rows] = _causal(q[tile.rows], tile_k, tile_v, tile.mask, sm_scale, soft_cap)


def _causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    sm_scale: float | None,
    soft_cap: float | None,
) -> Tensor:
    """One request: q [rows, n_heads, head_dim], k and v [kv_len, n_kv_heads, head_dim].

    Without a mask row i sees keys 0..i. The KV heads take SDPA's batch dimension and are expanded
    over their group with stride 0.
    """
    n_heads, n_kv_heads = q.shape[1], k.shape[1]
    group = n_heads // n_kv_heads
    result = dot_product_attention(
        q.reshape(len(q), n_kv_heads, group, -1).permute(1, 2, 0, 3),
        k.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        v.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        mask,
        mask is None,
        sm_scale,
        soft_cap,
    )
    return result.permute(2, 0, 1, 3).flatten(1, 2)
