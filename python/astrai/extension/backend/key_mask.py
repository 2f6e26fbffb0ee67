"""Packed attention under a key mask, one request at a time: correct for any mask, not fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from .cache_io import host_lens, packed_slots

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache


def masked_packed_attention(
    q: Tensor, kv_cache: KVCache, layer_id: int, key_mask: Tensor, sm_scale: float | None
) -> Tensor:
    """Causal attention of packed rows, over the keys that key_mask allows.

    q: [total_q, n_heads, head_dim]. key_mask: bool [batch, at least max_len], True where a key may
    be seen. A row that may see no key is zero. Raises ValueError on another mask.
    """
    seq_lens, q_lens = host_lens(kv_cache)
    batch, max_len = len(seq_lens), max(seq_lens)
    if key_mask.dtype != torch.bool or key_mask.dim() != 2:
        raise ValueError(
            f"attention: with a kv_cache attn_mask must be bool [batch, kv_len], "
            f"got {key_mask.dtype} {list(key_mask.shape)}"
        )
    if key_mask.shape[0] != batch or key_mask.shape[1] < max_len:
        raise ValueError(
            f"attention: attn_mask is {list(key_mask.shape)}; "
            f"this step needs [{batch}, at least {max_len}]"
        )
    slots = packed_slots(kv_cache)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    row, token = 0, 0
    for i, (seq_len, q_len) in enumerate(zip(seq_lens, q_lens, strict=True)):
        rows, own_slots = slice(row, row + q_len), slots[token : token + seq_len]
        order = q.new_ones((q_len, seq_len), dtype=torch.bool).tril_(seq_len - q_len)
        visible = order & key_mask[i, :seq_len]
        result = scaled_dot_product_attention(
            q[rows].transpose(0, 1).unsqueeze(0),
            kv_cache.k_buffer[layer_id][own_slots].transpose(0, 1).unsqueeze(0),
            kv_cache.v_buffer[layer_id][own_slots].transpose(0, 1).unsqueeze(0),
            attn_mask=visible,
            scale=sm_scale,
            enable_gqa=q.shape[1] != kv_cache.k_buffer.shape[2],
        )
        # A softmax over no key is 0/0 in some kernels.
        sees_none = ~visible.any(dim=1)[:, None, None]
        out[rows] = result[0].transpose(0, 1).masked_fill(sees_none, 0.0)
        row, token = row + q_len, token + seq_len
    return out
