"""Inputs and the comparison of the operations that compute in float32 and round once."""

from __future__ import annotations

import torch
from torch import Tensor

# One rounding of the result to 8 or 11 bits: at most 2^-8 or 2^-11 of the value, reached just above
# a power of two. The float32 arithmetic before it may move a value that lies between two results.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def random_rows(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def nan_like(x: Tensor) -> Tensor:
    """An output whose elements stay visible when nothing wrote them."""
    return torch.full_like(x, torch.nan)


def assert_one_rounding(actual: Tensor, expected: Tensor) -> None:
    """Every element is within one rounding of the float64 value (plus float32 arithmetic)."""
    error = (actual.double() - expected).abs()
    allowed = expected.abs() * ROUNDING[actual.dtype] * 1.01 + 1e-5
    assert torch.all(error <= allowed), f"worst excess {(error - allowed).max().item():.3g}"
