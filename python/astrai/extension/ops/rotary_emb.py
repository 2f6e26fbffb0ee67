"""The rotary_emb kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C


def rotary_emb(x: Tensor, freqs: Tensor, out: Tensor | None = None) -> Tensor:
    """Rotate neighbouring pairs (x0, x1), (x2, x3), ... of each head by the angles of its token.

    x: [T, H, D] or [B, S, H, D] bfloat16/float16 on a GPU; last dimension contiguous, other strides
    free. freqs: float32 (cos, sin) pairs, [T, R/2, 2], or [B*S, R/2, 2] or [B, S, R/2, 2] for a
    4-dimensional x; R is D or less, and elements from R on are copied. out: like x, may be x
    itself; allocated when None. Computes in float32 and rounds once. Runs on the current stream.
    No autograd.

    Returns out. Raises KernelUnavailableError when no kernel was built for (dtype, D), ValueError
    for shapes, strides or devices that do not fit.
    Su et al., RoFormer, 2021, eq. 34.
    """
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _C.rotary_emb(x, freqs, out)
    return out
