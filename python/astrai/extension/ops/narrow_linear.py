"""The narrow_linear kernel."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from astrai import _C


def narrow_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    output: Literal["store", "add", "silu_mul"] = "store",
    out: Tensor | None = None,
) -> Tensor:
    """x @ weight.T + bias for tens of rows, rounded to the dtype, and what becomes of it.

    x: [T, K] bfloat16/float16 on a GPU of compute capability 9.0, K a multiple of 8. weight:
    [N, K]. bias: [N]. output and out: as in `skinny_linear`, where out has a multiple of 8 columns.
    Right for any number of rows; fast up to about 256. Runs on the current stream. No autograd.

    Returns out. A row's bits depend neither on the number of rows nor on its place among them.
    Raises KernelUnavailableError for another dtype, on another GPU or in a build without this
    kernel, ValueError for what does not fit.
    """
    if out is None:
        if output == "add":
            raise ValueError("narrow_linear: output 'add' needs out, which it adds to")
        n_out = weight.shape[0] // 2 if output == "silu_mul" else weight.shape[0]
        out = x.new_empty((x.shape[0], n_out))
    _C.narrow_linear(x, weight, out, bias, output)
    return out
