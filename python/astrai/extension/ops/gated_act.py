"""The silu_mul and gelu_mul kernels."""

from __future__ import annotations

from torch import Tensor

from astrai import _C


def silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(gate) * up, where silu(g) = g / (1 + exp(-g)).

    gate_up: [T, 2 N] bfloat16/float16 on a GPU, N gates and then N ups, rows contiguous, any stride
    from row to row. out: [T, N], likewise; allocated when None. Computes in float32 and rounds
    once. Runs on the current stream. No autograd.

    Returns out. Raises KernelUnavailableError for another dtype or in a build without CUDA,
    ValueError for shapes, strides or devices that do not fit.
    """
    if out is None:
        out = _empty_out(gate_up)
    _C.silu_mul(gate_up, out)
    return out


def gelu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """gelu(gate) * up with the tanh form of GELU; otherwise as `silu_mul`.

    Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, section 2.
    """
    if out is None:
        out = _empty_out(gate_up)
    _C.gelu_mul(gate_up, out)
    return out


def _empty_out(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))
