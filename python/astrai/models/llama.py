"""Llama: also SmolLM2, TinyLlama and others that call themselves LlamaForCausalLM."""

from __future__ import annotations

from astrai.models.families import Family

__all__ = ["LLAMA"]

LLAMA = Family(
    name="llama",
    hf_architectures=("LlamaForCausalLM",),
    gguf_architecture="llama",
    gguf_rows_interleaved=True,
    hf_defaults={"max_position_embeddings": 2048},
)
