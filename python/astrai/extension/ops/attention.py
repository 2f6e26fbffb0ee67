"""The paged attention kernels. No build has them: both calls say so and name the remedy."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from astrai._C import KernelUnavailableError

from ._availability import unavailable_reason


def attn_paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    kv_indptr: Tensor,
    new_k: Tensor | None = None,
    new_v: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    o_part_buf: Tensor | None = None,
    ml_part_buf: Tensor | None = None,
    out_buf: Tensor | None = None,
    sm_scale: float | None = None,
) -> Tensor:
    """Attend one new token per request over its paged KV.

    q: [batch, n_heads, head_dim]. Raises KernelUnavailableError.
    """
    _raise_unavailable("attn_paged_decode", q)


def attn_paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    kv_indptr: Tensor,
    qo_indptr: Tensor,
    q_tile_to_batch: Tensor,
    q_tile_to_index: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    sm_scale: float | None = None,
) -> Tensor:
    """Attend the packed new rows of every request over its paged KV.

    q: [total_q, n_heads, head_dim]. Raises KernelUnavailableError.
    """
    _raise_unavailable("attn_paged_prefill", q)


def _raise_unavailable(name: str, q: Tensor) -> NoReturn:
    reason = unavailable_reason(name, q.dtype, q.shape[-1])
    raise KernelUnavailableError(f"{name}: {reason}. Select ATTN_BACKEND.TORCH_NATIVE.")
