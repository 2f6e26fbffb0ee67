"""Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): Qwen2 with experts, one of them shared by all rows
under a gate of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys
from astrai.models.experts_config import ExpertsConfig, experts_from_gguf
from astrai.models.families import ExpertNames, Family, LayerNames

__all__ = ["QWEN2_MOE", "qwen_experts"]


def qwen_experts(keys: Keys, shared_size: int | None = None) -> ExpertsConfig:
    """The mixture that a config.json of Qwen2-MoE or Qwen3-MoE describes."""
    key = "num_local_experts" if keys.get("num_local_experts") is not None else "num_experts"
    dense = keys.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer_id) is int for layer_id in dense):
        raise ValueError(f"mlp_only_layers must be a list of layer numbers, got {dense!r}.")
    return ExpertsConfig(
        n_experts=keys.size(key),
        n_active=keys.size("num_experts_per_tok"),
        intermediate_size=keys.size("moe_intermediate_size"),
        norm_topk_prob=keys.flag("norm_topk_prob"),
        shared_size=shared_size,
        sparse_step=keys.size("decoder_sparse_step"),
        dense_layers=tuple(dense),
    )


def _hf_fields(keys: Keys) -> Mapping[str, Any]:
    return {"experts": qwen_experts(keys, keys.size("shared_expert_intermediate_size"))}


def _gguf_fields(keys: Keys) -> Mapping[str, Any]:
    size = keys.size("feed_forward_length")
    # Older files state the size of all experts that a row goes through together.
    each = keys.size("expert_feed_forward_length", size // keys.size("expert_used_count") or 1)
    shared = keys.size("expert_shared_feed_forward_length", size)
    return {"experts": experts_from_gguf(keys, each, norm_topk_prob=False, shared_size=shared)}


QWEN2_MOE = Family(
    name="qwen2_moe",
    hf_architectures=("Qwen2MoeForCausalLM",),
    gguf_architecture="qwen2moe",
    layer=LayerNames(experts=ExpertNames()),
    has_o_bias=False,
    hf_bias_key="qkv_bias",
    hf_defaults={
        "max_position_embeddings": 32768,
        "qkv_bias": True,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 1,
    },
    hf_fields=_hf_fields,
    gguf_fields=_gguf_fields,
)
