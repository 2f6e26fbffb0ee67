"""Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B): Qwen3 with experts, none of them shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys
from astrai.models.experts_config import experts_from_gguf
from astrai.models.families import ExpertNames, Family, LayerNames
from astrai.models.qwen2_moe import qwen_experts

__all__ = ["QWEN3_MOE"]


def _hf_fields(keys: Keys) -> Mapping[str, Any]:
    return {"experts": qwen_experts(keys)}


def _gguf_fields(keys: Keys) -> Mapping[str, Any]:
    each = keys.size("expert_feed_forward_length")
    return {"experts": experts_from_gguf(keys, each, norm_topk_prob=True)}


QWEN3_MOE = Family(
    name="qwen3_moe",
    hf_architectures=("Qwen3MoeForCausalLM",),
    gguf_architecture="qwen3moe",
    layer=LayerNames(experts=ExpertNames()),
    qk_norm="head",
    hf_defaults={
        "max_position_embeddings": 32768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
    },
    hf_fields=_hf_fields,
    gguf_fields=_gguf_fields,
)
