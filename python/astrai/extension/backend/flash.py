"""FlashAttnBackend: the optional flash-attn package, over slots gathered from the pool."""

from __future__ import annotations

import importlib
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


@lru_cache(maxsize=1)
def _flash_attn() -> tuple[Any, str | None]:
    """(the module, None), or (None, why it cannot be used)."""
    try:
        module = importlib.import_module("flash_attn")
    except ImportError as error:
        return None, f"flash-attn is not usable: {error}"
    if not torch.cuda.is_available():
        return None, "flash-attn needs a CUDA device and torch sees none"
    capability = torch.cuda.get_device_capability()
    major = int(module.__version__.split(".")[0])
    needed = (9, 0) if major >= 3 else (8, 0)
    if capability < needed:
        return None, (
            f"flash-attn {module.__version__} needs compute capability {needed[0]}.{needed[1]}, "
            f"the device has {capability[0]}.{capability[1]}"
        )
    return module, None


@AttentionBackendFactory.register
class FlashAttnBackend(AttentionBackend):
    """flash_attn_varlen_func for packed batches, flash_attn_func for dense ones."""

    name: ClassVar[str] = "flash"

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
        return None

    def fwd_prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_cache: KVCache | None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        sm_scale: float | None = None,
    ) -> Tensor:
        flash, reason = _flash_attn()
        if reason is not None:
            raise RuntimeError(f"FlashAttnBackend: {reason}")
        if kv_cache is None:
            dense: Tensor = flash.flash_attn_func(q, k, v, softmax_scale=sm_scale, causal=is_causal)
            return dense
        write_kv(kv_cache, layer_id, k, v)
        slots = packed_slots(kv_cache)
        out: Tensor = flash.flash_attn_varlen_func(
            q,
            kv_cache.k_buffer[layer_id].index_select(0, slots),
            kv_cache.v_buffer[layer_id].index_select(0, slots),
            cu_seqlens_q=kv_cache.qo_indptr,
            cu_seqlens_k=kv_cache.kv_indptr,
            max_seqlen_q=max(host_lens(kv_cache)[1]),
            max_seqlen_k=kv_cache.max_len,
            softmax_scale=sm_scale,
            causal=True,  # aligned at the last key since flash-attn 2.1
        )
        return out

    def fwd_decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_cache: KVCache | None,
        layer_id: int = 0,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        sm_scale: float | None = None,
    ) -> Tensor:
        if kv_cache is None:
            raise ValueError("attention: fwd is 'decode' without a kv_cache; pass the step's cache")
        return self.fwd_prefill(q, k, v, kv_cache, layer_id, attn_mask, is_causal, sm_scale)
