"""The store_kv kernel."""

from __future__ import annotations

from torch import Tensor

from astrai import _C


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, out_cache_loc: Tensor) -> None:
    """Copy row t of k and v into slot out_cache_loc[t] of the caches; skip negative slots.

    k, v: [T, H_kv, D] bfloat16/float16 on a GPU, the last two dimensions contiguous. k_cache,
    v_cache: [n_slots, H_kv, D] of the same dtype, modified in place. out_cache_loc: [T] int32,
    different slots below n_slots. Runs on the current stream.

    Raises KernelUnavailableError for another dtype or in a build without CUDA, ValueError for
    shapes, strides or devices that do not fit.
    """
    _C.store_kv(k, v, k_cache, v_cache, out_cache_loc)
