"""Scaled dot-product attention with a soft cap on its scores, which torch's own does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    sm_scale: float | None,
    soft_cap: float | None,
) -> Tensor:
    """torch's function without a soft cap; with one the scores are made in float32.

    q: [..., n_heads, q_len, head_dim]; k and v: [..., n_kv_heads, kv_len, head_dim]. mask: bool
    (True: may be seen) or additive; a causal order comes with a soft cap only as a mask."""
    group = q.shape[-3] // k.shape[-3]
    if soft_cap is None:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=sm_scale, enable_gqa=group > 1
        )
    if is_causal:
        raise RuntimeError("dot_product_attention: soft_cap with is_causal; pass a mask instead")
    if group > 1:
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = q.float() @ k.float().transpose(-1, -2)
    scores = scores * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    scores = torch.tanh(scores / soft_cap) * soft_cap
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ v.float()).to(q.dtype)
