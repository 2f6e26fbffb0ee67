"""`ModelConfig` from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astrai.models.config import ModelConfig
from astrai.models.config_keys import Keys, first_id, token_ids
from astrai.models.registry import family_of_gguf
from astrai.models.rope import RopeConfig

__all__ = ["RopeVectors", "config_from_gguf"]

_ROPE_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}


@dataclass(frozen=True, slots=True)
class RopeVectors:
    """Tensors of a GGUF file that are RoPE settings, [rotary_dim / 2] each; None: not there."""

    divisors: tuple[float, ...] | None = None  # rope_freqs.weight
    short: tuple[float, ...] | None = None  # rope_factors_short.weight
    long: tuple[float, ...] | None = None  # rope_factors_long.weight


def config_from_gguf(
    metadata: Mapping[str, Any],
    embedding_rows: int,
    has_output: bool,
    rope_vectors: RopeVectors | None = None,
    has_attention_bias: bool = False,
    has_o_bias: bool = False,
) -> ModelConfig:
    """The ModelConfig of a GGUF file.

    embedding_rows: rows of token_embd.weight (vocab_size where the metadata has none).
    has_output: is there an output.weight; without one the embeddings are tied. has_attention_bias,
    has_o_bias: are there biases of q, k and v, and of the output projection."""
    family = family_of_gguf(metadata)
    prefix = f"{family.gguf_architecture}."
    keys = Keys(metadata, prefix)
    hidden_size = keys.size("embedding_length")
    n_heads = keys.size("attention.head_count")
    head_dim = keys.size("attention.key_length", hidden_size // n_heads)
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise ValueError(f"{prefix}attention.value_length differs from key_length.")
    if keys.get("expert_count") and family.layer.experts is None:
        raise ValueError(f"{prefix}expert_count: a {family.name} model has no experts.")
    window = keys.optional_size("attention.sliding_window") if family.sliding_pattern else None
    return ModelConfig(
        architecture=family.name,
        vocab_size=embedding_rows,
        hidden_size=hidden_size,
        n_layers=keys.size("block_count"),
        n_heads=n_heads,
        n_kv_heads=keys.size("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        intermediate_size=keys.size("feed_forward_length"),
        rms_norm_eps=keys.positive("attention.layer_norm_rms_epsilon", 1e-6),
        tie_word_embeddings=not has_output,
        max_position_embeddings=keys.size("context_length"),
        rope=_rope(keys, prefix, head_dim, rope_vectors or RopeVectors()),
        use_qk_norm=family.qk_norm is not None,
        attention_bias=has_attention_bias,
        o_bias=has_o_bias,
        sliding_window=window,
        sliding_pattern=(family.sliding_pattern if window else None) or (False,),
        bos_token_id=first_id(metadata.get("tokenizer.ggml.bos_token_id")),
        eos_token_ids=token_ids(
            metadata.get("tokenizer.ggml.eos_token_id"), "tokenizer.ggml.eos_token_id"
        ),
        **family.gguf_fields(keys),
    )


def _rope(keys: Keys, prefix: str, head_dim: int, vectors: RopeVectors) -> RopeConfig:
    scaling = keys.get("rope.scaling.type") or "none"
    if vectors.short is not None and vectors.long is not None:
        scaling = "longrope"
    rope_type = _ROPE_TYPES.get(scaling)
    if rope_type is None:
        raise ValueError(f"{prefix}rope.scaling.type {scaling!r} is not supported.")
    if rope_type == "longrope" and (vectors.short is None or vectors.long is None):
        raise ValueError(
            f"{prefix}rope.scaling.type is 'longrope', but there are no tensors "
            "rope_factors_short.weight and rope_factors_long.weight."
        )
    rotary_dim = keys.size("rope.dimension_count", head_dim)
    original = keys.optional_size("rope.scaling.original_context_length")
    factor = keys.positive("rope.scaling.factor", 1.0)
    attention_factor = None
    if rope_type == "longrope":
        attention_factor = keys.optional_positive("rope.scaling.attn_factor")
        if original:
            factor = keys.size("context_length") / original
    return RopeConfig(
        rope_type=rope_type,
        theta=keys.positive("rope.freq_base", 10000.0),
        factor=factor,
        original_max_len=original,
        attention_factor=attention_factor,
        partial_factor=rotary_dim / head_dim,
        short_factors=vectors.short if rope_type == "longrope" else None,
        long_factors=vectors.long if rope_type == "longrope" else None,
        frequency_divisors=vectors.divisors,
    )
