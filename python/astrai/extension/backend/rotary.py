"""Rotary position embedding of interleaved pairs (x0, x1), (x2, x3)... (Su et al., RoFormer, 2021).

The table holds [cos, sin] of each pair's angle in float32; `astrai.models.rotary` builds it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from astrai.extension import ops

_KERNEL_DTYPES = (torch.bfloat16, torch.float16)


def apply_rotary_emb(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotate the pairs of every head of x by its token's angles.

    x: [total_q, n_heads, head_dim] or [batch, seq_len, n_heads, head_dim], any float dtype.
    freqs_cis: float32 [total_q, n, 2] or [batch, seq_len, n, 2] of [cos, sin]; dimension batch may
    be 1. 2 * n <= head_dim: dimensions from 2 * n on pass through (partial rotary).
    Returns a new tensor of x's shape and dtype; the product is taken in float32 at least.
    On CUDA, in bfloat16 or float16 and with gradients off, the compiled kernel runs if it is
    there; otherwise a complex product, which supports autograd.
    Raises ValueError when the shapes do not fit.
    """
    rotary_dim = 2 * freqs_cis.shape[-2]
    if freqs_cis.dim() != x.dim() or freqs_cis.shape[-1] != 2 or rotary_dim > x.shape[-1]:
        raise ValueError(
            f"apply_rotary_emb: x is {list(x.shape)}, freqs_cis {list(freqs_cis.shape)}; "
            "freqs_cis must be x's token dimensions followed by [n, 2] with 2 * n <= head_dim"
        )
    if rotary_dim < x.shape[-1]:
        rotated = apply_rotary_emb(x[..., :rotary_dim], freqs_cis)
        return torch.cat((rotated, x[..., rotary_dim:]), dim=-1)
    if _kernel_runs(x):
        return ops.rotary_emb(x, freqs_cis)
    return _complex_product(x, freqs_cis)


def _kernel_runs(x: Tensor) -> bool:
    if x.device.type != "cuda" or x.dtype not in _KERNEL_DTYPES or torch.is_grad_enabled():
        return False
    return ops.is_available("rotary_emb", x.dtype, x.shape[-1])


def _complex_product(x: Tensor, freqs_cis: Tensor) -> Tensor:
    dtype = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.view_as_complex(x.to(dtype).reshape(*x.shape[:-1], -1, 2))
    turns = torch.view_as_complex(freqs_cis.to(dtype)).unsqueeze(-2)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
