"""`ModelConfig` from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from astrai.models.config import ModelConfig
from astrai.models.config_keys import Keys, first_id, token_ids
from astrai.models.families import Family
from astrai.models.llama import LLAMA
from astrai.models.mistral import MISTRAL
from astrai.models.registry import family_of_gguf
from astrai.models.rope import RopeConfig

__all__ = ["RopeVectors", "config_from_gguf"]

_MAX_PATTERN = 1 << 16  # layers; a file could ask for any number
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
    window, pattern = _windows(keys, prefix, family)
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
        sliding_pattern=pattern,
        bos_token_id=first_id(metadata.get("tokenizer.ggml.bos_token_id")),
        eos_token_ids=token_ids(
            metadata.get("tokenizer.ggml.eos_token_id"), "tokenizer.ggml.eos_token_id"
        ),
        **family.gguf_fields(keys),
    )


def _windows(keys: Keys, prefix: str, family: Family) -> tuple[int | None, tuple[bool, ...]]:
    """(sliding_window, sliding_pattern)."""
    window = keys.get("attention.sliding_window")
    if window is None or (isinstance(window, int) and window == 0):  # converters write null as 0
        return None, (False,)
    window = keys.size("attention.sliding_window")
    given = keys.get("attention.sliding_window_pattern")
    if isinstance(given, np.ndarray):
        return window, tuple(map(bool, given.tolist())) or (False,)
    if given is not None:  # each `given`th layer is full
        every = min(keys.size("attention.sliding_window_pattern"), _MAX_PATTERN)
        return window, (True,) * (every - 1) + (False,)
    # Files of Mistral models call themselves llama.
    pattern = MISTRAL.sliding_pattern if family is LLAMA else family.sliding_pattern
    if pattern is None:
        raise ValueError(
            f"{prefix}attention.sliding_window: windows are not part of a {family.name} model."
        )
    return window, pattern


def _rope(keys: Keys, prefix: str, head_dim: int, vectors: RopeVectors) -> RopeConfig:
    scaling = keys.get("rope.scaling.type")
    scaling = "none" if scaling is None else scaling
    if vectors.short is not None and vectors.long is not None:
        scaling = "longrope"
    rope_type = _ROPE_TYPES.get(scaling) if isinstance(scaling, str) else None
    if rope_type is None:
        raise ValueError(f"{prefix}rope.scaling.type {scaling!r} is not supported.")
    if rope_type == "longrope" and (vectors.short is None or vectors.long is None):
        raise ValueError(
            f"{prefix}rope.scaling.type is 'longrope', but there are no tensors "
            "rope_factors_short.weight and rope_factors_long.weight."
        )
    rotary_dim = keys.size("rope.dimension_count", head_dim)
    original = keys.optional_size("rope.scaling.original_context_length")
    old_factor = keys.positive("rope.scale_linear", 1.0)  # before there were scaling types
    factor = keys.positive("rope.scaling.factor", old_factor)
    if rope_type == "default" and old_factor != 1.0:
        rope_type = "linear"
    attention_factor = keys.optional_positive("rope.scaling.attn_factor")
    if rope_type == "longrope" and original:
        factor = keys.size("context_length") / original
    elif rope_type == "yarn" and attention_factor is not None and factor > 1.0:
        attention_factor *= 0.1 * math.log(factor) + 1.0  # there the key is one factor of two
    elif rope_type != "longrope":
        attention_factor = None
    return RopeConfig(
        rope_type=rope_type,
        theta=keys.positive("rope.freq_base", 10000.0),
        factor=factor,
        original_max_len=original,
        attention_factor=attention_factor,
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
        partial_factor=rotary_dim / head_dim,
        short_factors=vectors.short if rope_type == "longrope" else None,
        long_factors=vectors.long if rope_type == "longrope" else None,
        frequency_divisors=vectors.divisors,
    )
