"""Gemma 3, text: Gemma 2 with norms of q and k in place of soft caps, and a rotary base of its own
for the layers that slide, five of six. Of the models that also see, the text part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys
from astrai.models.families import Family
from astrai.models.gemma2 import GEMMA_DEFAULTS, GEMMA_LAYER, gemma_fields, gemma_gguf_fields
from astrai.models.rope import RopeConfig

__all__ = ["GEMMA3"]

_LOCAL_THETA = 10000.0


def _hf_fields(keys: Keys) -> Mapping[str, Any]:
    return {**gemma_fields(keys), "context_is_scaled": True}


def _gguf_fields(keys: Keys) -> Mapping[str, Any]:
    local_theta = keys.positive("rope.freq_base_swa", _LOCAL_THETA)
    return {
        **gemma_gguf_fields(keys),
        "local_rope": RopeConfig(theta=local_theta),
        "context_is_scaled": True,
    }


GEMMA3 = Family(
    name="gemma3",
    hf_architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    gguf_architecture="gemma3",
    layer=GEMMA_LAYER,
    qk_norm="head",
    norm_offset=1.0,
    # As published, and as transformers has them from 4.52 on.
    hf_renames=(
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("model.language_model.", "model."),
    ),
    hf_ignored=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
    sliding_pattern=(True, True, True, True, True, False),
    hf_defaults={
        **GEMMA_DEFAULTS,
        # The published text_config of 4B and larger leaves these out.
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": _LOCAL_THETA,
    },
    hf_fields=_hf_fields,
    gguf_fields=_gguf_fields,
)
