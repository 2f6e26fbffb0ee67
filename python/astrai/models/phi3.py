"""Phi-3 and Phi-4-mini: fused projections, partial rotary, longrope."""

from __future__ import annotations

from astrai.models.families import Family, LayerNames

__all__ = ["PHI3"]

PHI3 = Family(
    name="phi3",
    hf_architectures=("Phi3ForCausalLM",),
    gguf_architecture="phi3",
    layer=LayerNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    sliding_pattern=(True,),
    hf_defaults={
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
)
