"""Mistral, whose layers all slide where there is a window, and Ministral, which mixes them."""

from __future__ import annotations

from astrai.models.families import Family

__all__ = ["MISTRAL"]

MISTRAL = Family(
    name="mistral",
    hf_architectures=("MistralForCausalLM", "MinistralForCausalLM"),
    gguf_architecture=None,  # GGUF files of Mistral models call themselves llama
    sliding_pattern=(True,),
    hf_defaults={"max_position_embeddings": 131072, "sliding_window": 4096},
)
