"""Gemma 2: norms of weight + 1 before and after each part, scaled embeddings, soft caps, every
other layer slides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys
from astrai.models.families import Family, LayerNames

__all__ = ["GEMMA2", "GEMMA_DEFAULTS", "GEMMA_LAYER", "gemma_fields", "gemma_gguf_fields"]

GEMMA_LAYER = LayerNames(
    attention_norm="post_attention_layernorm",
    mlp_input_norm="pre_feedforward_layernorm",
    mlp_norm="post_feedforward_layernorm",
)
GEMMA_DEFAULTS: Mapping[str, Any] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_27B_LAYERS = {46, 62}  # of Gemma 2 and 3; the only size that scales by hidden / heads


def gemma_fields(keys: Keys) -> Mapping[str, Any]:
    """Fields of ModelConfig that Gemma 2 and 3 read from config.json."""
    if keys.flag("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention: only causal models are supported.")
    return {
        "embedding_scale": keys.size("hidden_size") ** 0.5,
        "sm_scale": keys.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        "attn_soft_cap": keys.optional_positive("attn_logit_softcapping"),
        "logit_soft_cap": keys.optional_positive("final_logit_softcapping"),
    }


def gemma_gguf_fields(keys: Keys) -> Mapping[str, Any]:
    """The same from GGUF metadata, which has no query scale."""
    hidden_size, n_heads = keys.size("embedding_length"), keys.size("attention.head_count")
    per_head = hidden_size // n_heads
    if keys.size("block_count") not in _27B_LAYERS:
        per_head = keys.size("attention.key_length", per_head)
    return {
        "activation": "gelu_tanh",
        "embedding_scale": hidden_size**0.5,
        "sm_scale": per_head**-0.5,
        "attn_soft_cap": keys.optional_positive("attn_logit_softcapping"),
        "logit_soft_cap": keys.optional_positive("final_logit_softcapping"),
    }


GEMMA2 = Family(
    name="gemma2",
    hf_architectures=("Gemma2ForCausalLM",),
    gguf_architecture="gemma2",
    layer=GEMMA_LAYER,
    norm_offset=1.0,
    sliding_pattern=(True, False),
    hf_defaults={
        **GEMMA_DEFAULTS,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    hf_fields=gemma_fields,
    gguf_fields=gemma_gguf_fields,
)
