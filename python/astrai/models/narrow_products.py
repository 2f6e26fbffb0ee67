"""Where the products of tens of rows on a GPU are our own kernel's, and where the library's.

By shape and number of rows alone, from benchmarks/results/narrow_linear.md; nothing is timed here.
Both round a float32 sum once, in another order of additions."""

from __future__ import annotations

from functools import cache

import torch

from astrai.extension import ops

__all__ = ["most_gated_rows", "most_product_rows", "narrow_gate", "narrow_product"]

_FEWEST_ROWS = 17  # below, a decoder layer's products are those of `ops.skinny_linear`
_MOST_ROWS = 256
_MOST_ROWS_LARGE = 128
_LARGE_BYTES = 32 << 20  # of a weight whose reading outlasts a launch by far
_LEAST_BYTES = 4 << 20  # of the smallest weight that was measured


def narrow_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor | None:
    """`linear` of these rows where our kernel is the faster one, else None."""
    if not _FEWEST_ROWS <= x.shape[0] <= _MOST_ROWS or not x.is_cuda:
        return None
    n_out, n_in = weight.shape
    if x.shape[0] > most_product_rows(n_out, n_in) or not _fits(x, weight, bias, n_out):
        return None
    return ops.narrow_linear(x, weight, bias, out=out)


def narrow_gate(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor | None:
    """silu_mul of `linear`, whose rows are gates and then ups, likewise."""
    if not _FEWEST_ROWS <= x.shape[0] <= _MOST_ROWS or not x.is_cuda:
        return None
    n_products, n_in = weight.shape
    if x.shape[0] > most_gated_rows(n_products, n_in) or n_products % 2:
        return None
    if not _fits(x, weight, bias, n_products // 2):
        return None
    return ops.narrow_linear(x, weight, bias, output="silu_mul", out=out)


def most_product_rows(n_out: int, n_in: int) -> int:
    """Up to how many rows `narrow_product` takes; 0 for none. Decided by the layer: a product that
    is no faster alone may start while the kernel before it ends. Much wider weights were not
    measured, or are heads."""
    n_bytes = 2 * n_out * n_in
    widest = 4 * n_in if n_bytes < _LARGE_BYTES else 2 * n_in
    return _most_rows(n_bytes) if n_out <= widest else 0


def most_gated_rows(n_products: int, n_in: int) -> int:
    """Up to how many rows `narrow_gate` takes."""
    return _most_rows(2 * n_products * n_in)


def _most_rows(n_bytes: int) -> int:
    if n_bytes < _LEAST_BYTES:
        return 0
    return _MOST_ROWS if n_bytes < _LARGE_BYTES else _MOST_ROWS_LARGE


def _fits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, n_out: int) -> bool:
    """Does the kernel take these tensors, with an output of n_out columns?"""
    if not _has_kernel(x.dtype) or weight.shape[1] % 8 or n_out % 8:
        return False
    if x.stride(0) % 8 or weight.stride(0) % 8:
        return False
    given = (x, weight) if bias is None else (x, weight, bias)
    return all(t.stride(-1) == 1 and t.data_ptr() % 16 == 0 for t in given)


@cache
def _has_kernel(dtype: torch.dtype) -> bool:
    return ops.unavailable_reason("narrow_linear", dtype) is None
