"""Gemma 3, text: Gemma 2 with norms of q and k in place of soft caps, and a rotary base of its own
for the layers that slide, five of six."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys
from astrai.models.families import Family
from astrai.models.gemma2 import GEMMA_DEFAULTS, GEMMA_LAYER, gemma_fields, gemma_gguf_fields
from astrai.models.rope import RopeConfig

__all__ = ["GEMMA3"]

_LOCAL_THETA = 10000.0


def _gguf_fields(keys: Keys) -> Mapping[str, Any]:
    return {**gemma_gguf_fields(keys), "local_rope": RopeConfig(theta=_LOCAL_THETA)}


GEMMA3 = Family(
    name="gemma3",
    hf_architectures=("Gemma3ForCausalLM",),
    gguf_architecture="gemma3",
    layer=GEMMA_LAYER,
    qk_norm="head",
    norm_offset=1.0,
    sliding_pattern=(True, True, True, True, True, False),
    hf_defaults={
        **GEMMA_DEFAULTS,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": _LOCAL_THETA,
    },
    hf_fields=gemma_fields,
    gguf_fields=_gguf_fields,
)
