"""Capability checks, backend selection, fallback, and KV cache I/O."""

from __future__ import annotations

from .base import AttentionBackend, AttentionBackendFactory, AttentionCall
from .cache_io import layer_kv
from .cuda import CudaBackend
from .flash import FlashAttnBackend
from .policy import attention
from .rotary import apply_rotary_emb
from .selection import (
    ATTN_BACKEND,
    Selection,
    attn_backend,
    current_selection,
    get_backend,
    reads_written_kv,
    use_selection,
)
from .torch_native import TorchNativeBackend

__all__ = [
    "ATTN_BACKEND",
    "AttentionBackend",
    "AttentionBackendFactory",
    "AttentionCall",
    "CudaBackend",
    "FlashAttnBackend",
    "Selection",
    "TorchNativeBackend",
    "apply_rotary_emb",
    "attention",
    "attn_backend",
    "current_selection",
    "get_backend",
    "layer_kv",
    "reads_written_kv",
    "use_selection",
]
