"""Linear layers: one function for the product, one small object for a layer's weights.

`Linear` is the seam for other weight formats: whatever holds a weight is callable on packed rows,
so the decoder never looks inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from astrai import _C
from astrai.models.narrow_products import narrow_product

__all__ = ["CPU_DTYPES", "Linear", "Product", "has_cpu_product", "linear"]

# (x, weight, bias, out) -> out, as `linear`
Product = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor
]

CPU_DTYPES = (torch.float32, torch.bfloat16)  # of the compiled CPU operations


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x @ weight.T + bias. x: [n_rows, n_in]; weight: [n_out, n_in]; both of one dtype. out:
    [n_rows, n_out] to overwrite. Returns [n_rows, n_out]."""
    if has_cpu_product(x):
        if out is None:
            out = x.new_empty((x.shape[0], weight.shape[0]))
        _C.cpu_linear(x, weight, out, bias)
        return out
    narrow = narrow_product(x, weight, bias, out)
    if narrow is not None:
        return narrow
    if out is None:
        return F.linear(x, weight, bias)
    if bias is None:
        return torch.mm(x, weight.T, out=out)
    return torch.addmm(bias, x, weight.T, out=out)


def has_cpu_product(x: torch.Tensor) -> bool:
    """Do the compiled products take these rows? They are for few rows; torch's are for many."""
    is_few = x.shape[0] <= _C.CPU_LINEAR_MAX_ROWS
    return is_few and x.device.type == "cpu" and x.dtype in CPU_DTYPES


@dataclass(frozen=True, slots=True)
class Linear:
    """A dense layer in the serving dtype."""

    weight: torch.Tensor  # [n_out, n_in]
    bias: torch.Tensor | None = None  # [n_out]
    product: Product = field(default=linear, repr=False)

    @property
    def has_own_product(self) -> bool:
        """Is its product another one than `linear`?"""
        return self.product is not linear

    def tensors(self) -> list[torch.Tensor]:
        """Every weight."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.product(x, self.weight, self.bias, out)
