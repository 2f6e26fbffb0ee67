"""Granite, dense: Llama with multipliers on embeddings, residual, attention scores and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys
from astrai.models.families import Family

__all__ = ["GRANITE"]


def _hf_fields(keys: Keys) -> Mapping[str, Any]:
    return {
        "embedding_scale": keys.positive("embedding_multiplier", 1.0),
        "residual_scale": keys.positive("residual_multiplier", 1.0),
        "sm_scale": keys.positive("attention_multiplier", 1.0),
        "logit_divisor": keys.positive("logits_scaling", 1.0),
    }


def _gguf_fields(keys: Keys) -> Mapping[str, Any]:
    return {
        "embedding_scale": keys.positive("embedding_scale", 1.0),
        "residual_scale": keys.positive("residual_scale", 1.0),
        "sm_scale": keys.optional_positive("attention.scale"),
        "logit_divisor": keys.positive("logit_scale", 1.0),
    }


GRANITE = Family(
    name="granite",
    hf_architectures=("GraniteForCausalLM",),
    gguf_architecture="granite",
    gguf_rows_interleaved=True,
    hf_defaults={"max_position_embeddings": 2048},
    hf_fields=_hf_fields,
    gguf_fields=_gguf_fields,
)
