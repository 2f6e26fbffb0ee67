"""Qwen3, dense: q and k are normalised head by head, head_dim is apart from hidden / heads."""

from __future__ import annotations

from astrai.models.families import Family

__all__ = ["QWEN3"]

QWEN3 = Family(
    name="qwen3",
    hf_architecture="Qwen3ForCausalLM",
    gguf_architecture="qwen3",
    has_qk_norm=True,
    gguf_rows_interleaved=False,
    hf_defaults={"max_position_embeddings": 32768, "head_dim": 128},
)
