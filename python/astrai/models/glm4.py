"""GLM-4: half of each head rotates, in neighbouring pairs; norms before and after each part."""

from __future__ import annotations

from astrai.models.families import Family, LayerNames

__all__ = ["GLM4"]

GLM4 = Family(
    name="glm4",
    hf_architectures=("Glm4ForCausalLM",),
    gguf_architecture="glm4",
    layer=LayerNames(
        attention_norm="post_self_attn_layernorm",
        mlp_norm="post_mlp_layernorm",
        gate_up=("mlp.gate_up_proj",),
    ),
    hf_rows_interleaved=True,
    gguf_rows_interleaved=True,
    has_o_bias=False,
    hf_defaults={
        "max_position_embeddings": 131072,
        "head_dim": 128,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-7,
    },
)
