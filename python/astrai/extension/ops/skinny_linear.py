"""The skinny_linear kernel."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from astrai import _C


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    output: Literal["store", "add", "silu_mul"] = "store",
    out: Tensor | None = None,
) -> Tensor:
    """rms_norm(x) @ weight.T + bias for few rows, rounded to the dtype, and what becomes of it.

    x: [T, K] bfloat16/float16 on a GPU, T at most `_C.skinny_linear_max_rows(K)`, K a multiple of
    8. weight: [N, K]. bias: [N]. norm_weight: [K], None leaves x as it is; eps of the norm.
    output: "store"; "add" rounds the sum with what out holds; "silu_mul" gives silu(gate) * up,
    where the first N / 2 columns of the product are gates. out: [T, N], or [T, N / 2] for
    "silu_mul"; allocated when None, but for "add". Runs on the current stream. No autograd.

    Returns out. A row's bits do not depend on the number of rows. Raises KernelUnavailableError for
    another dtype or in a build without CUDA, ValueError for what does not fit.
    """
    if out is None:
        if output == "add":
            raise ValueError("skinny_linear: output 'add' needs out, which it adds to")
        n_out = weight.shape[0] // 2 if output == "silu_mul" else weight.shape[0]
        out = x.new_empty((x.shape[0], n_out))
    _C.skinny_linear(x, weight, out, bias, norm_weight, eps, output)
    return out
