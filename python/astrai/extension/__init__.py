"""Policy API of attention and rotary embedding. Models call these; kernels are in `.ops`."""

from __future__ import annotations

from .backend import (
    ATTN_BACKEND,
    AttentionBackend,
    AttentionBackendFactory,
    CudaBackend,
    FlashAttnBackend,
    Selection,
    TorchNativeBackend,
    apply_rotary_emb,
    attention,
    attn_backend,
    current_selection,
    get_backend,
    layer_kv,
    reads_written_kv,
    use_selection,
)

__all__ = [
    "ATTN_BACKEND",
    "AttentionBackend",
    "AttentionBackendFactory",
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
