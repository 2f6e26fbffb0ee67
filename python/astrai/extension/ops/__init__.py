"""Direct wrappers of the compiled CUDA kernels: they raise where one is missing, never fall back.

Most callers want `astrai.extension.attention` and `apply_rotary_emb`, which choose and fall back.
"""

from __future__ import annotations

from astrai._C import KernelUnavailableError

from ._availability import KERNEL_NAMES, is_available, unavailable_reason
from .attention import attn_paged_decode
from .attn_paged_prefill import attn_paged_prefill
from .rotary_emb import rotary_emb
from .store_kv import store_kv

__all__ = [
    "KERNEL_NAMES",
    "KernelUnavailableError",
    "attn_paged_decode",
    "attn_paged_prefill",
    "is_available",
    "rotary_emb",
    "store_kv",
    "unavailable_reason",
]
