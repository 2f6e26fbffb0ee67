"""The embedding kernel."""

from __future__ import annotations

from torch import Tensor

from astrai import _C


def embedding(ids: Tensor, table: Tensor, out: Tensor | None = None) -> Tensor:
    """Row t of the result is table[ids[t]].

    ids: [T] int32 or int64 on a GPU, each in [0, V): another one traps on the device. table: [V, N]
    bfloat16/float16, rows contiguous. out: [T, N]; allocated when None. Runs on the current stream.

    Returns out. Raises KernelUnavailableError for another dtype or in a build without CUDA,
    ValueError for shapes, strides or devices that do not fit.
    """
    if out is None:
        out = table.new_empty((ids.shape[0], table.shape[1]))
    _C.embedding(ids, table, out)
    return out
