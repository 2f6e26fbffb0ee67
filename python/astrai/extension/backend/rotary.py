"""Rotary position embedding of interleaved pairs (x0, x1), (x2, x3)... (Su et al., RoFormer, 2021).

The table holds [cos, sin] of each pair's angle in float32; `astrai.models.rotary` builds it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops

_CUDA_DTYPES = (torch.bfloat16, torch.float16)
_CPU_DTYPES = (torch.bfloat16, torch.float32)


def apply_rotary_emb(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotate the pairs of every head of x by its token's angles.

    x: [total_q, n_heads, head_dim] or [batch, seq_len, n_heads, head_dim], any float dtype.
    freqs_cis: float32 [total_q, n, 2] or [batch, seq_len, n, 2] of [cos, sin]; dimension batch may
    be 1. 2 * n <= head_dim: dimensions from 2 * n on pass through (partial rotary).
    Returns a new tensor of x's shape and dtype; the product is taken in float32 at least.
    With gradients off a compiled kernel runs where there is one: on CUDA for bfloat16 and float16,
    on the CPU for packed bfloat16 and float32. Otherwise a complex product, which has autograd.
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
    if not torch.is_grad_enabled():
        if _cuda_kernel_runs(x):
            return ops.rotary_emb(x, freqs_cis.expand(*x.shape[:-2], -1, -1))
        if _cpu_kernel_runs(x, freqs_cis):
            out = x.new_empty(x.shape)
            _C.cpu_rotary_emb(x, freqs_cis, out)
            return out
    return _complex_product(x, freqs_cis)


def _cuda_kernel_runs(x: Tensor) -> bool:
    return (
        x.device.type == "cuda"
        and x.dtype in _CUDA_DTYPES
        and x.stride(-1) == 1
        and ops.is_available("rotary_emb", x.dtype, x.shape[-1])
    )


def _cpu_kernel_runs(x: Tensor, freqs_cis: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype in _CPU_DTYPES
        and x.dim() == 3
        and x.stride(2) == 1
        and x.stride(1) == x.shape[2]
        and freqs_cis.dtype == torch.float32
        and freqs_cis.is_contiguous()
        and len(freqs_cis) == len(x)
    )


def _complex_product(x: Tensor, freqs_cis: Tensor) -> Tensor:
    dtype = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.view_as_complex(x.to(dtype).reshape(*x.shape[:-1], -1, 2))
    turns = torch.view_as_complex(freqs_cis.to(dtype)).unsqueeze(-2)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
