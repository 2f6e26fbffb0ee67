"""`attention`: the one entry point of models. Describes the call, picks the backend, runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .base import AttentionCall, given_options
from .selection import backend_for

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache


def attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    kv_cache: KVCache | None = None,
    layer_id: int = 0,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    fwd: str | None = None,
    sm_scale: float | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Scaled dot-product attention, grouped queries included, by the selected backend.

    With kv_cache (inference): q is [total_q, n_heads, head_dim], k and v this step's new rows
    [total_q, n_kv_heads, head_dim], RoPE applied. They are written to slots out_cache_loc of layer
    layer_id first (None: a fused kernel has written them already); each row then attends its
    request's tokens up to itself, so is_causal adds nothing. attn_mask: bool [batch, at least
    max_len], True where a key may be seen.
    fwd "decode" promises one new token per request; "prefill" and None take any ragged batch.

    Without kv_cache (training): q is [batch, q_len, n_heads, head_dim], k and v [batch, kv_len,
    n_kv_heads, head_dim], with autograd. attn_mask is bool (True: may be seen) or additive,
    broadcastable to [batch, n_heads, q_len, kv_len]; is_causal aligns the last query with the last
    key.

    sm_scale: default head_dim ** -0.5. window: a row sees its own key and the window - 1 before it
    only, in causal order. soft_cap: scores become soft_cap * tanh(score / soft_cap) (Gemma Team,
    Gemma 2, 2024, section 2). A backend that does not compute them is not chosen.

    Returns a tensor of q's shape and dtype.
    Raises ValueError on bad shapes or options and KernelUnavailableError when the explicitly
    selected backend cannot handle the call.
    """
    _check_shapes(q, k, v, kv_cache)
    _check_options(window, soft_cap, is_causal or kv_cache is not None)
    inputs = [tensor for tensor in (q, k, v) if tensor is not None]
    call = AttentionCall(
        fwd=fwd,
        q_rank=q.dim(),
        n_heads=q.shape[-2],
        n_kv_heads=_n_kv_heads(k, kv_cache),
        head_dim=q.shape[-1],
        dtype=q.dtype,
        device_type=q.device.type,
        has_cache=kv_cache is not None,
        has_mask=attn_mask is not None,
        needs_grad=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs),
        window=window,
        soft_cap=soft_cap,
    )
    return backend_for(call).forward(
        q,
        k,
        v,
        kv_cache,
        layer_id,
        attn_mask,
        is_causal,
        fwd,
        sm_scale,
        **given_options(window, soft_cap),
    )


def _check_options(window: int | None, soft_cap: float | None, is_causal: bool) -> None:
    if window is not None and (window < 1 or not is_causal):
        raise ValueError(
            f"attention: window is {window}; it must be a number of keys from 1, and the order "
            "causal (is_causal=True, or a kv_cache)"
        )
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"attention: soft_cap is {soft_cap}; it must be above 0, or None")


def _check_shapes(q: Tensor, k: Tensor | None, v: Tensor | None, kv_cache: KVCache | None) -> None:
    rank = 4 if kv_cache is None else 3
    if k is None or v is None:
        if kv_cache is None or k is not v or q.dim() != rank:
            raise ValueError(
                "attention: k and v may be None only together, with a kv_cache that holds this "
                "step's keys and values, and with q [total_q, heads, head_dim]"
            )
    elif q.dim() != rank or k.dim() != rank or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
        layout = "[total_q, heads, head_dim]" if rank == 3 else "[batch, seq_len, heads, head_dim]"
        raise ValueError(
            f"attention: q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            f"{'with' if rank == 3 else 'without'} a kv_cache all are {layout}, "
            "and k and v have the same shape"
        )


def _n_kv_heads(k: Tensor | None, kv_cache: KVCache | None) -> int:
    if k is not None:
        return k.shape[-2]
    assert kv_cache is not None  # checked
    return kv_cache.k_buffer.shape[-2]
