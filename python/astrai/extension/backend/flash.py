"""FlashAttnBackend: the optional flash-attn package (https://github.com/Dao-AILab/flash-attention).

Its paged kernels take pages of a multiple of 256 slots: such a pool is read in place. From any
other pool the batch's slots are gathered first.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .base import AttentionBackend, AttentionBackendFactory, AttentionCall
from .cache_io import host_lens, packed_slots, write_kv

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache

_DTYPES = (torch.float16, torch.bfloat16)
_MAX_HEAD_DIM = 256  # flash-attn README, "NVIDIA CUDA Support"
_PAGE_MULTIPLE = 256  # of slots; what its paged kernels accept
_FIRST_VERSION = (2, 6)  # block_table for packed batches, and softcap
_FUNCTIONS = ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache")


@lru_cache(maxsize=1)
def _flash_attn() -> tuple[Any, str | None]:
    """(the module, None), or (None, why it cannot be used)."""
    try:
        module = importlib.import_module("flash_attn")
    except ImportError as error:
        return None, f"flash-attn is not usable: {error}"
    version = str(getattr(module, "__version__", "unknown"))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _FIRST_VERSION:
        needed = ".".join(map(str, _FIRST_VERSION))
        return None, f"flash-attn {version} is too old: install flash-attn>={needed}"
    missing = [name for name in _FUNCTIONS if not hasattr(module, name)]
    if missing:
        return None, f"flash-attn {version} has no {', '.join(missing)}; install flash-attn>=2.6,<3"
    if not torch.cuda.is_available():
        return None, "flash-attn needs a CUDA device and torch sees none"
    capability = torch.cuda.get_device_capability()
    wanted = (9, 0) if int(numbers[1]) >= 3 else (8, 0)
    if capability < wanted:
        return None, (
            f"flash-attn {version} needs compute capability {wanted[0]}.{wanted[1]}, "
            f"the device has {capability[0]}.{capability[1]}"
        )
    return module, None


@AttentionBackendFactory.register
class FlashAttnBackend(AttentionBackend):
    """flash_attn_func for dense batches, flash_attn_with_kvcache for decode over a pool of fitting
    pages, flash_attn_varlen_func for all other packed batches.

    flash-attn itself splits the keys of a gathered decode batch by the batch's size, so there the
    last bits of a row may depend on who shares the batch. Windows and soft caps are not passed on.
    """

    name: ClassVar[str] = "flash"
    reads_written_kv: ClassVar[bool] = True

    def unavailable_reason(self) -> str | None:
        return _flash_attn()[1]

    def supports(self, call: AttentionCall) -> str | None:
        if call.device_type != "cuda":
            return f"flash-attn runs on cuda, not on {call.device_type}"
        if call.dtype not in _DTYPES:
            return f"flash-attn takes {_DTYPES[0]} and {_DTYPES[1]}, not {call.dtype}"
        if call.head_dim > _MAX_HEAD_DIM or call.head_dim % 8 != 0:
            return f"head_dim {call.head_dim} is not a multiple of 8 up to {_MAX_HEAD_DIM}"
        if call.n_heads % call.n_kv_heads != 0:
            return f"n_heads {call.n_heads} is not a multiple of n_kv_heads {call.n_kv_heads}"
        if call.has_mask:
            return "flash-attn takes no attn_mask"
        if call.has_cache and call.needs_grad:
            return "flash-attn has no backward over a kv_cache"
        return None

    def fwd_prefill(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        kv_cache: KVCache | None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        sm_scale: float | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        flash, reason = _flash_attn()
        if reason is not None:
            raise RuntimeError(f"FlashAttnBackend: {reason}")
        if kv_cache is None:
            dense: Tensor = flash.flash_attn_func(q, k, v, softmax_scale=sm_scale, causal=is_causal)
            return dense
        write_kv(kv_cache, layer_id, k, v)
        q_lens = host_lens(kv_cache)[1]
        is_paged = kv_cache.page_size % _PAGE_MULTIPLE == 0
        if is_paged and set(q_lens) == {1}:
            return _paged_decode(flash, q, kv_cache, layer_id, sm_scale)
        if is_paged:
            keys, values = _pages(kv_cache, layer_id)
        else:
            slots = packed_slots(kv_cache)
            keys = kv_cache.k_buffer[layer_id].index_select(0, slots)
            values = kv_cache.v_buffer[layer_id].index_select(0, slots)
        out: Tensor = flash.flash_attn_varlen_func(
            q,
            keys,
            values,
            cu_seqlens_q=kv_cache.qo_indptr,
            cu_seqlens_k=kv_cache.kv_indptr,
            max_seqlen_q=max(q_lens),
            max_seqlen_k=kv_cache.max_len,
            softmax_scale=sm_scale,
            causal=True,  # aligned at the last key since flash-attn 2.1
            block_table=_block_table(kv_cache) if is_paged else None,
        )
        return out


def _paged_decode(
    flash: Any, q: Tensor, kv_cache: KVCache, layer_id: int, sm_scale: float | None
) -> Tensor:
    """One new token per request, its key and value in the pool already."""
    keys, values = _pages(kv_cache, layer_id)
    out: Tensor = flash.flash_attn_with_kvcache(
        q.unsqueeze(1),
        keys,
        values,
        cache_seqlens=kv_cache.seq_lens,
        block_table=_block_table(kv_cache),
        softmax_scale=sm_scale,
        causal=True,
        num_splits=1,  # its own choice looks at the batch, and a row's result would follow
    )
    return out.squeeze(1)


def _pages(kv_cache: KVCache, layer_id: int) -> tuple[Tensor, Tensor]:
    """Views of one layer's keys and values, [n_pages, page_size, n_kv_heads, head_dim]."""
    size = kv_cache.page_size
    n_pages = kv_cache.k_buffer.shape[1] // size  # without the reserved slot
    shape = (n_pages, size, *kv_cache.k_buffer.shape[2:])
    keys = kv_cache.k_buffer[layer_id, : n_pages * size].view(shape)
    return keys, kv_cache.v_buffer[layer_id, : n_pages * size].view(shape)


def _block_table(kv_cache: KVCache) -> Tensor:
    """int32 [batch, ceil(max_len / page_size)] the page of each run of positions; once per step."""
    table: Tensor | None = kv_cache.scratch.get("flash_block_table")
    if table is None:
        firsts = kv_cache.req_to_token[:, : kv_cache.max_len : kv_cache.page_size]
        pages = firsts.index_select(0, kv_cache.req_pool_indices) // kv_cache.page_size
        # Entries behind a request may be stale: never read, and kept within the pool all the same.
        n_pages = kv_cache.k_buffer.shape[1] // kv_cache.page_size
        table = pages.clamp_(0, n_pages - 1).contiguous()
        kv_cache.scratch["flash_block_table"] = table
    return table
