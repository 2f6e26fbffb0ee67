"""The rotary_store_kv kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C


def rotary_store_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    freqs: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out_cache_loc: Tensor,
    *,
    positions: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    q_out: Tensor | None = None,
) -> Tensor:
    """Norm and rotate q and k, and write k and v to their cache slots, in one launch.

    Bit for bit what `rms_norm` (where q_norm and k_norm are given), `rotary_emb` and `store_kv`
    give one after another.

    q: [T, H, D]; k, v: [T, H_kv, D] bfloat16/float16 on a GPU, for example three slices of one qkv
    row; D a multiple of 8 up to 256, every head on 16 bytes. freqs: float32 (cos, sin) pairs
    [T, R/2, 2], R a multiple of 8 up to D; elements from R on are not rotated. With positions, [T]
    int32 or int64, freqs is the whole table and row positions[t] is used; one outside it traps on
    the device. k_cache, v_cache: [n_slots, H_kv, D], modified; out_cache_loc: [T] int32, negative
    slots are skipped. q_norm, k_norm: [D] weights, both or none. q_out: like q, may be q itself;
    allocated when None. Runs on the current stream. No autograd.

    Returns q_out. Raises KernelUnavailableError for another dtype or in a build without CUDA,
    ValueError for shapes, strides or devices that do not fit.
    """
    if q_out is None:
        q_out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _C.rotary_store_kv(
        q, k, v, freqs, k_cache, v_cache, out_cache_loc, q_out, positions, q_norm, k_norm, eps
    )
    return q_out
