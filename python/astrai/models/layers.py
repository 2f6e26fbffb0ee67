"""Normalisation and activation of the decoder. On a CPU they are single compiled passes over the
rows; elsewhere, and for dtypes that those do not take, torch operations. For serving: no autograd.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from astrai import _C
from astrai.models.linear import CPU_DTYPES

__all__ = ["add_rms_norm", "rms_norm", "silu_mul"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, mean in float32. x: [..., n];
    weight: [n]. Zhang and Sennrich, Root Mean Square Layer Normalization, 2019."""
    if not _has_cpu_pass(x):
        return F.rms_norm(x, weight.shape, weight, eps)
    rows = x.contiguous().view(-1, x.shape[-1])
    out = torch.empty_like(rows)
    _C.cpu_rms_norm(rows, weight, out, eps)
    return out.view(x.shape)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Adds x to residual in place and returns rms_norm of the sum. Both: [n_rows, n]. out: where
    the compiled pass writes, see `Workspace`."""
    if out is None:
        if not _has_cpu_pass(x):
            residual.add_(x)
            return F.rms_norm(residual, weight.shape, weight, eps)
        out = torch.empty_like(x)
    _C.cpu_rms_norm(x, weight, out, eps, residual)
    return out


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up. gate_up: [n_rows, 2 n], gate first. out: where the compiled pass writes,
    see `Workspace`. Returns [n_rows, n]."""
    n = gate_up.shape[1] // 2
    if out is None:
        if not _has_cpu_pass(gate_up):
            return F.silu(gate_up[:, :n]).mul_(gate_up[:, n:])
        out = gate_up.new_empty((gate_up.shape[0], n))
    _C.cpu_silu_mul(gate_up, out)
    return out


def _has_cpu_pass(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in CPU_DTYPES
