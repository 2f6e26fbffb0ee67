"""Rotary frequencies: reading a checkpoint's RoPE settings and turning them into a cos/sin table.

Formulas follow the models' authors as transformers spells them
(https://github.com/huggingface/transformers, modeling_rope_utils.py), in float32 like there, so
that a table entry differs by no more than rounding from the one a model was trained with.
Pure functions; no state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["ROPE_TYPES", "RopeConfig", "cos_sin_table", "inverse_frequencies", "rope_from_hf"]

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """RoPE settings under one spelling. Fields that a type does not use keep their defaults."""

    rope_type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_len: int | None = None  # tokens; None = the model's max_position_embeddings
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float | None = None  # yarn; None = derived from factor and mscale
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: whole-numbered correction range
    # GGUF `rope_freqs.weight`, [head_dim / 2]: what each pair's frequency is divided by.
    frequency_divisors: tuple[float, ...] | None = None


def rope_from_hf(config: Mapping[str, Any]) -> RopeConfig:
    """RoPE settings of a config.json, in the transformers 4 spelling (`rope_theta`, `rope_scaling`
    with `type` or `rope_type`) or the transformers 5 one (`rope_parameters`).

    Raises ValueError that names the setting for anything this engine does not compute."""
    spelled = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    given = config.get(spelled) or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{spelled} must be an object, got {type(given).__name__}.")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise ValueError(f"{spelled} differs by layer type, which this version does not support.")
    rope_type = given.get("rope_type", given.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"{spelled} has rope_type {rope_type!r}; supported are {', '.join(ROPE_TYPES)}."
        )
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        raise ValueError(f"partial_rotary_factor is {partial!r}; only 1.0 is supported.")

    def number(key: str, default: float | None, minimum: float = 0.0) -> Any:
        value = given.get(key)
        if value is None:
            value = default
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > minimum:
            raise ValueError(f"{spelled}.{key} must be a number above {minimum:g}, got {value!r}.")
        return value

    original = number("original_max_position_embeddings", None)
    if original is None:
        original = config.get("original_max_position_embeddings")
    factor = number("factor", None)
    if factor is None:
        max_len = config.get("max_position_embeddings")
        if rope_type == "yarn" and original and max_len:
            factor = max_len / original
        elif rope_type != "default":
            raise ValueError(f"{spelled}.factor is missing (rope_type {rope_type!r} needs it).")
    return RopeConfig(
        rope_type=rope_type,
        theta=float(number("rope_theta", config.get("rope_theta") or 10000.0)),
        factor=float(factor or 1.0),
        original_max_len=None if original is None else int(original),
        low_freq_factor=float(number("low_freq_factor", 1.0)),
        high_freq_factor=float(number("high_freq_factor", 4.0)),
        attention_factor=number("attention_factor", None),
        beta_fast=float(number("beta_fast", 32.0)),
        beta_slow=float(number("beta_slow", 1.0)),
        mscale=number("mscale", None),
        mscale_all_dim=number("mscale_all_dim", None),
        truncate=bool(given.get("truncate", True)),
    )


def inverse_frequencies(
    rope: RopeConfig, head_dim: int, max_position_embeddings: int, max_len: int | None = None
) -> tuple[torch.Tensor, float]:
    """Angle per position of each rotated pair, and the factor on cos and sin.

    max_position_embeddings: the model's context in tokens. max_len: longest sequence served, which
    only dynamic NTK looks at. Returns (float32 [head_dim / 2], attention factor)."""
    original = rope.original_max_len or max_position_embeddings
    theta = rope.theta
    if rope.rope_type == "dynamic":
        # One table serves every length, so the base is the one for the longest sequence served
        # (up to the trained context it is the plain base).
        length = max(max_len or 0, max_position_embeddings)
        stretch = rope.factor * length / max_position_embeddings - (rope.factor - 1)
        theta *= stretch ** (head_dim / (head_dim - 2))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inv_freq = 1.0 / (theta**exponents)
    scale = 1.0
    if rope.rope_type == "linear":
        inv_freq = inv_freq / rope.factor
    elif rope.rope_type == "llama3":
        inv_freq = _llama3(rope, inv_freq, original)
    elif rope.rope_type == "yarn":
        inv_freq, scale = _yarn(rope, inv_freq, head_dim, original)
    if rope.frequency_divisors is not None:
        inv_freq = inv_freq / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    return inv_freq, scale


def cos_sin_table(
    rope: RopeConfig, head_dim: int, max_position_embeddings: int, max_len: int
) -> torch.Tensor:
    """float32 [max_len, head_dim / 2, 2]: cos and sin of each pair's angle at each position."""
    inv_freq, scale = inverse_frequencies(rope, head_dim, max_position_embeddings, max_len)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), inv_freq)
    return torch.stack((angles.cos() * scale, angles.sin() * scale), dim=-1)


def _llama3(rope: RopeConfig, inv_freq: torch.Tensor, original: int) -> torch.Tensor:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, those between blended."""
    low_wavelen = original / rope.low_freq_factor
    high_wavelen = original / rope.high_freq_factor
    wavelen = 2 * math.pi / inv_freq
    scaled = torch.where(wavelen > low_wavelen, inv_freq / rope.factor, inv_freq)
    blend = (original / wavelen - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    smoothed = (1 - blend) * scaled / rope.factor + blend * scaled
    is_between = ~(wavelen < high_wavelen) & ~(wavelen > low_wavelen)
    return torch.where(is_between, smoothed, scaled)


def _yarn(
    rope: RopeConfig, inv_freq: torch.Tensor, head_dim: int, original: int
) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al., 2023, section 3.2): interpolate low frequencies, keep high ones."""

    def pair_of(rotations: float) -> float:
        return (
            head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
    keep = 1 - ramp.clamp(0, 1)
    blended = inv_freq / rope.factor * (1 - keep) + inv_freq * keep
    return blended, _yarn_attention_factor(rope)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return magnitude(1.0)
