"""The attn_paged_decode kernel. No build has it: the call says so and names the remedy."""

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


def _raise_unavailable(name: str, q: Tensor) -> NoReturn:
    reason = unavailable_reason(name, q.dtype, q.shape[-1])
    raise KernelUnavailableError(f"{name}: {reason}. Select ATTN_BACKEND.TORCH_NATIVE.")
