"""Mixtral: Mistral with experts in each layer, whose weights sum to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys
from astrai.models.experts_config import ExpertsConfig, experts_from_gguf
from astrai.models.families import ExpertNames, Family, LayerNames

__all__ = ["MIXTRAL"]


def _hf_fields(keys: Keys) -> Mapping[str, Any]:
    return {
        "experts": ExpertsConfig(
            n_experts=keys.size("num_local_experts"),
            n_active=keys.size("num_experts_per_tok"),
            intermediate_size=keys.size("intermediate_size"),
            norm_topk_prob=True,
        )
    }


def _gguf_fields(keys: Keys) -> Mapping[str, Any]:
    return {"experts": experts_from_gguf(keys, keys.size("feed_forward_length"), True)}


MIXTRAL = Family(
    name="mixtral",
    hf_architectures=("MixtralForCausalLM",),
    gguf_architecture="llama",  # as Llama, with an expert_count
    layer=LayerNames(experts=ExpertNames(gate="w1", up="w3", down="w2")),
    hf_renames=((".block_sparse_moe.", ".mlp."),),
    gguf_rows_interleaved=True,
    sliding_pattern=(True,),
    hf_defaults={
        "max_position_embeddings": 131072,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
    },
    hf_fields=_hf_fields,
    gguf_fields=_gguf_fields,
)
