"""Qwen3, dense: q and k are normalised head by head, head_dim is apart from hidden / heads."""

from __future__ import annotations

from astrai.models.families import Family

__all__ = ["QWEN3"]

QWEN3 = Family(
    name="qwen3",
    hf_architectures=("Qwen3ForCausalLM",),
    gguf_architecture="qwen3",
    qk_norm="head",
    sliding_pattern=(True,),
    hf_defaults={
        "max_position_embeddings": 32768,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
)
