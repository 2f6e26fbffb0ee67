"""OLMo 2: norms after attention and MLP instead of before, q and k normalised as a whole."""

from __future__ import annotations

from astrai.models.families import Family, LayerNames

__all__ = ["OLMO2"]

OLMO2 = Family(
    name="olmo2",
    hf_architectures=("Olmo2ForCausalLM",),
    gguf_architecture="olmo2",
    layer=LayerNames(
        input_norm=None,
        attention_norm="post_attention_layernorm",
        mlp_input_norm=None,
        mlp_norm="post_feedforward_layernorm",
    ),
    qk_norm="projection",
    hf_defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
)
