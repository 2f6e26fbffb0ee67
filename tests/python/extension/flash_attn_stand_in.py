"""A stand-in for the `flash_attn` package, version 2: its three functions, with their signatures.

Each refuses what the library's own checks refuse (csrc/flash_attn/flash_api.cpp of flash-attn 2.8),
except that tensors may lie on the CPU, computes in float64 from the definition or by SDPA, and
records its call. The library itself has never run in these tests.
"""

from __future__ import annotations

import inspect
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__version__ = "2.8.3"

calls: list[tuple[str, dict[str, Any]]] = []  # (function, its bound arguments), oldest first


def _recorded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: object, **kwargs: object) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        calls.append((function.__name__, dict(bound.arguments)))
        return function(*args, **kwargs)

    return call


@_recorded
def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q: [batch, q_len, n_heads, head_dim]; k, v: [batch, kv_len, n_kv_heads, head_dim]."""
    _check_rows("q", q, 4, q)
    _check_rows("k", k, 4, q)
    _check_rows("v", v, 4, q)
    _check_options(dropout_p, softmax_scale, causal, window_size, softcap)
    assert alibi_slopes is None and not deterministic and not return_attn_probs
    assert q.shape[0] > 0 and k.shape == v.shape == (q.shape[0], *v.shape[1:3], q.shape[3])
    assert q.shape[2] % k.shape[2] == 0
    options = (softmax_scale, causal, window_size, softcap)
    return torch.stack([_attend(*one, *options) for one in zip(q, k, v, strict=True)])


@_recorded
def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """q: [total_q, n_heads, head_dim]; k, v: [total_k, n_kv_heads, head_dim], or pages."""
    _check_rows("q", q, 3, q)
    _check_rows("k", k, 3 if block_table is None else 4, q)
    _check_rows("v", v, 3 if block_table is None else 4, q)
    _check_options(dropout_p, softmax_scale, causal, window_size, softcap)
    assert alibi_slopes is None and not deterministic and not return_attn_probs
    batch = len(cu_seqlens_q) - 1
    for indptr in (cu_seqlens_q, cu_seqlens_k):
        assert indptr.dtype == torch.int32 and indptr.device == q.device
        assert indptr.is_contiguous() and indptr.shape == (batch + 1,)
    assert batch > 0 and k.shape == v.shape and q.shape[1] % k.shape[-2] == 0
    q_bounds, k_bounds = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert q_bounds[-1] == len(q)
    # The library never looks at rows or keys past these.
    assert type(max_seqlen_q) is int and max_seqlen_q == max(_lens(q_bounds))
    assert type(max_seqlen_k) is int and max_seqlen_k == max(_lens(k_bounds))
    if block_table is None:
        assert k_bounds[-1] == len(k)
        kv = [(k[a:b], v[a:b]) for a, b in pairwise(k_bounds)]
    else:
        kv = _gathered(k, v, block_table, _lens(k_bounds), q)
    rows = [q[a:b] for a, b in pairwise(q_bounds)]
    options = (softmax_scale, causal, window_size, softcap)
    return torch.cat([_attend(x, *one, *options) for x, one in zip(rows, kv, strict=True)])


@_recorded
def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """q: [batch, q_len, n_heads, head_dim]; k_cache, v_cache: pages. Serves no other form."""
    _check_rows("q", q, 4, q)
    _check_rows("k_cache", k_cache, 4, q)
    _check_rows("v_cache", v_cache, 4, q)
    _check_options(0.0, softmax_scale, causal, window_size, softcap)
    assert k is None and v is None and rotary_cos is None and rotary_sin is None
    assert cache_batch_idx is None and cache_leftpad is None and alibi_slopes is None
    assert not return_softmax_lse and rotary_interleaved
    assert type(num_splits) is int and 0 <= num_splits <= 128
    assert cache_seqlens.dtype == torch.int32 and cache_seqlens.is_contiguous()
    assert cache_seqlens.shape == (len(q),) and cache_seqlens.device == q.device
    assert len(q) > 0 and k_cache.shape == v_cache.shape and q.shape[2] % k_cache.shape[2] == 0
    kv = _gathered(k_cache, v_cache, block_table, cache_seqlens.tolist(), q)
    options = (softmax_scale, causal, window_size, softcap)
    return torch.stack([_attend(x, *one, *options) for x, one in zip(q, kv, strict=True)])


def _check_rows(name: str, x: Tensor, rank: int, q: Tensor) -> None:
    assert x.dtype in (torch.float16, torch.bfloat16), f"{name} is {x.dtype}"
    assert x.dtype == q.dtype and x.device == q.device and x.dim() == rank, name
    assert x.stride(-1) == 1, f"{name} must have contiguous last dimension"
    assert x.shape[-1] == q.shape[-1] and x.shape[-1] <= 256 and x.shape[-1] % 8 == 0, name


def _check_options(dropout_p, softmax_scale, causal, window_size, softcap) -> None:
    assert dropout_p == 0.0 and (softmax_scale is None or type(softmax_scale) is float)
    assert type(causal) is bool and type(softcap) is float and softcap >= 0
    assert len(window_size) == 2 and all(type(side) is int and side >= -1 for side in window_size)


def _lens(bounds: list[int]) -> list[int]:
    return [end - begin for begin, end in pairwise(bounds)]


def _gathered(
    k: Tensor, v: Tensor, block_table: Tensor, kv_lens: list[int], q: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each request out of [n_pages, page_size, n_kv_heads, head_dim]."""
    n_pages, page_size = k.shape[:2]
    assert page_size % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert block_table.dtype == torch.int32 and block_table.device == q.device
    assert block_table.stride(-1) == 1 and block_table.shape[0] == len(kv_lens)
    assert block_table.shape[1] * page_size >= max(kv_lens)
    assert int(block_table.min()) >= 0 and int(block_table.max()) < n_pages
    pages = [row[: -(-n // page_size)].long() for row, n in zip(block_table, kv_lens, strict=True)]
    return [
        (k[own].flatten(0, 1)[:n], v[own].flatten(0, 1)[:n])
        for own, n in zip(pages, kv_lens, strict=True)
    ]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> Tensor:
    """One sequence: q [q_len, n_heads, d], k and v [kv_len, n_kv_heads, d]; causal order and window
    are aligned at the last key, and a row that sees no key is 0."""
    q_len, kv_len = len(q), len(k)
    left, right = window_size
    row = torch.arange(q_len, device=q.device)[:, None] + kv_len - q_len
    key = torch.arange(kv_len, device=q.device)[None]
    visible = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device)
    if causal:
        right = 0
    if left >= 0:
        visible &= key >= row - left
    if right >= 0:
        visible &= key <= row + right
    heads = [x.double().transpose(0, 1) for x in (q, k, v)]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    if softcap > 0:
        group = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(group, 0) for x in heads[1:])
        scores = softcap * torch.tanh(heads[0] @ keys.transpose(1, 2) * scale / softcap)
        out = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1) @ values
    else:
        batched = [x[None] for x in heads]
        out = scaled_dot_product_attention(
            *batched, attn_mask=visible, scale=scale, enable_gqa=True
        )[0]
    out = out.masked_fill(~visible.any(1)[:, None], 0.0)
    return out.transpose(0, 1).to(q.dtype)
