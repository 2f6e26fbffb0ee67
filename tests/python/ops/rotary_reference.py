"""Rotary embedding of interleaved pairs in float64, from the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_table(positions: Tensor, head_dim: int, theta: float = 10000.0) -> Tensor:
    """[T, head_dim / 2, 2] float32 (cos, sin) of each position's angles."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions.double()[:, None] * theta ** -(exponents / head_dim)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).float()


def rotate(x: Tensor, freqs: Tensor) -> Tensor:
    """x [T, H, D] rotated by freqs [T, D/2, 2]; float64."""
    even, odd = x[..., 0::2].double(), x[..., 1::2].double()
    cosine, sine = freqs[:, None, :, 0].double(), freqs[:, None, :, 1].double()
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)
