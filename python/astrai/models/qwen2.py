"""Qwen2 and Qwen2.5: biases on q, k and v alone; upper layers may slide."""

from __future__ import annotations

from astrai.models.families import Family

__all__ = ["QWEN2"]

QWEN2 = Family(
    name="qwen2",
    hf_architectures=("Qwen2ForCausalLM",),
    gguf_architecture="qwen2",
    has_o_bias=False,
    sliding_pattern=(True,),
    hf_defaults={
        "max_position_embeddings": 32768,
        "attention_bias": True,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
)
