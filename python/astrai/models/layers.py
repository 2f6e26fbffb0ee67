"""Normalisation and activation of the decoder. Pure functions on packed rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["add_rms_norm", "rms_norm", "silu_mul"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, mean in float32. x: [..., n];
    weight: [n]. Zhang and Sennrich, Root Mean Square Layer Normalization, 2019."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Adds x to residual in place and returns rms_norm of the sum. Both: [n_rows, n]."""
    residual.add_(x)
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. gate_up: [n_rows, 2 n], gate first; may be overwritten. Returns
    [n_rows, n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
