"""The rms_norm and add_rms_norm kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [T, N] or [T, H, N] bfloat16/float16 on a GPU, last dimension contiguous, other strides free.
    weight: [N]. out: like x, may be x itself; allocated when None. Computes in float32 and rounds
    once; a row's bits depend on that row alone. Runs on the current stream. No autograd.

    Returns out. Raises KernelUnavailableError for another dtype or in a build without CUDA,
    ValueError for shapes, strides or devices that do not fit.
    Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _C.rms_norm(x, weight, out, eps)
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor | None = None
) -> Tensor:
    """Add x to residual in place, rounded to its dtype, and return rms_norm of that sum.

    x, residual: [T, N] bfloat16/float16 on a GPU, rows contiguous, any stride from row to row.
    residual is modified. weight, eps, out, the stream and the errors: as in `rms_norm`.
    """
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _C.add_rms_norm(x, residual, weight, out, eps)
    return out
