"""Plain reference computations and the one table of tolerances.

Everything here is computed in float64 from the definition, one row at a time, and shares no code
with the package.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# dtype -> (rtol, atol) against the float64 reference of the same, already rounded, inputs.
# Inputs are standard normal, so outputs are of order 1.
TOLERANCES = {
    torch.float64: (1e-10, 1e-10),  # rounding of sums of up to some thousand terms
    torch.float32: (2e-5, 2e-5),  # 2**-24 per operation, exp and sums of up to some thousand terms
    torch.bfloat16: (2e-2, 2e-2),  # 2**-9 per rounding: probabilities, and the output
    torch.float16: (3e-3, 3e-3),  # 2**-12 per rounding, as above
}


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Compare with the tolerance of the dtype that the computation ran in."""
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None, sm_scale: float | None = None
) -> Tensor:
    """Attention of one sequence in float64.

    q: [q_len, n_heads, head_dim]; k, v: [kv_len, n_kv_heads, head_dim]; query head h reads KV head
    h // (n_heads // n_kv_heads). visible: bool [q_len, kv_len]; default: causal, the last query
    sees the last key. A query that sees no key gives 0.
    """
    q, k, v = q.double(), k.double(), v.double()
    q_len, n_heads, head_dim = q.shape
    kv_len, n_kv_heads = k.shape[:2]
    if visible is None:
        query_pos = torch.arange(kv_len - q_len, kv_len).unsqueeze(1)
        visible = torch.arange(kv_len).unsqueeze(0) <= query_pos
    scale = 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    out = torch.zeros_like(q)
    for head in range(n_heads):
        kv_head = head // (n_heads // n_kv_heads)
        scores = (q[:, head] @ k[:, kv_head].T) * scale
        for row in range(q_len):
            keys = visible[row].nonzero().flatten()
            if len(keys):
                weights = torch.softmax(scores[row, keys], dim=0)
                out[row, head] = weights @ v[keys, kv_head]
    return out


def reference_rotary(x: Tensor, freqs: Tensor) -> Tensor:
    """Rotation of interleaved pairs in float64. x: [..., n_heads, d]; freqs: [..., n, 2]."""
    out = x.double().clone()
    for pair in range(freqs.shape[-2]):
        cos = freqs[..., pair, 0].double().unsqueeze(-1)
        sin = freqs[..., pair, 1].double().unsqueeze(-1)
        first, second = x[..., 2 * pair].double(), x[..., 2 * pair + 1].double()
        out[..., 2 * pair] = first * cos - second * sin
        out[..., 2 * pair + 1] = first * sin + second * cos
    return out


def rotary_table(n_positions: int, dim: int, base: float = 10000.0) -> Tensor:
    """float32 [n_positions, dim / 2, 2] of [cos, sin], angles in float64."""
    inv_freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(n_positions, dtype=torch.float64).unsqueeze(1) * inv_freq
    return torch.stack((angles.cos(), angles.sin()), dim=-1).float()
