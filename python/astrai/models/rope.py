"""Rotary frequencies: a checkpoint's RoPE settings and the cos/sin table that they make.

Formulas follow the models' authors as transformers spells them
(https://github.com/huggingface/transformers, modeling_rope_utils.py), in float32 like there, so
that a table entry differs by no more than rounding from the one a model was trained with.
Pure functions; no state."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["ROPE_TYPES", "RopeConfig", "cos_sin_table", "inverse_frequencies"]

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """RoPE settings under one spelling. Fields that a type does not use keep their defaults."""

    rope_type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_len: int | None = None  # tokens; None = the model's max_position_embeddings
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    attention_factor: float | None = None  # yarn, longrope; None = derived from the others
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: whole-numbered correction range
    # longrope, [rotary_dim / 2]: what each pair's frequency is divided by, for sequences within
    # original_max_len and for longer ones.
    short_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    partial_factor: float = 1.0  # part of each head that rotates
    # GGUF `rope_freqs.weight`, [rotary_dim / 2]: what each pair's frequency is divided by.
    frequency_divisors: tuple[float, ...] | None = None

    def rotary_dim(self, head_dim: int) -> int:
        """Dimensions of a head that rotate, the first ones."""
        return int(head_dim * self.partial_factor)

    def context_len(self, max_position_embeddings: int) -> int:
        """Tokens that these settings reach where max_position_embeddings is the context without
        them (or, for yarn, with them): as the scalings' authors define their factors."""
        if self.rope_type in ("linear", "dynamic"):
            return int(max_position_embeddings * self.factor)
        if self.rope_type == "yarn":
            original = self.original_max_len or max_position_embeddings
            return max(max_position_embeddings, int(original * self.factor))
        return max_position_embeddings

    def switch_len(self, max_position_embeddings: int) -> int | None:
        """Tokens of the longest text with the first frequencies, where longer ones have others."""
        if self.rope_type == "longrope":
            return self.original_max_len or max_position_embeddings
        return max_position_embeddings if self.rope_type == "dynamic" else None

    def check(self, head_dim: int) -> None:
        """Raises ValueError for settings that do not fit heads of this size."""
        rotary_dim = self.rotary_dim(head_dim)
        if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
            raise ValueError(
                f"partial_rotary_factor {self.partial_factor} of head_dim {head_dim} is "
                f"{rotary_dim} dimensions; an even number from 2 to head_dim is needed."
            )
        vectors = {
            "short_factor": self.short_factors,
            "long_factor": self.long_factors,
            "rope_freqs.weight": self.frequency_divisors,
        }
        for name, values in vectors.items():
            if values is not None and len(values) != rotary_dim // 2:
                raise ValueError(
                    f"{name} has {len(values)} numbers; {rotary_dim} rotary dimensions need "
                    f"{rotary_dim // 2}."
                )


def inverse_frequencies(
    rope: RopeConfig, head_dim: int, max_position_embeddings: int, text_len: int | None = None
) -> tuple[torch.Tensor, float]:
    """Angle per position of each rotated pair, and the factor on cos and sin.

    max_position_embeddings: the model's context in tokens. text_len: tokens of the text, which
    dynamic NTK and longrope look at; None: as many as have the first frequencies.
    Returns (float32 [rotary_dim / 2], attention factor)."""
    dim = rope.rotary_dim(head_dim)
    original = rope.original_max_len or max_position_embeddings
    theta = rope.theta
    if rope.rope_type == "dynamic":
        # Bloc97, NTK-aware scaled RoPE, 2023, in the form that follows the length.
        length = max(text_len or 0, max_position_embeddings)
        stretch = rope.factor * length / max_position_embeddings - (rope.factor - 1)
        theta *= stretch ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float32) / dim
    inv_freq = 1.0 / (theta**exponents)
    scale = 1.0
    if rope.rope_type == "linear":
        inv_freq = inv_freq / rope.factor
    elif rope.rope_type == "llama3":
        inv_freq = _llama3(rope, inv_freq, original)
    elif rope.rope_type == "yarn":
        inv_freq, scale = _yarn(rope, inv_freq, dim, original)
    elif rope.rope_type == "longrope":
        is_long = text_len is not None and text_len > original
        factors = rope.long_factors if is_long else rope.short_factors
        assert factors is not None  # the readers have checked
        inv_freq = 1.0 / (torch.tensor(factors, dtype=torch.float32) * theta**exponents)
        scale = _longrope_attention_factor(rope, original)
    if rope.frequency_divisors is not None:
        inv_freq = inv_freq / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    return inv_freq, scale


def cos_sin_table(
    rope: RopeConfig,
    head_dim: int,
    max_position_embeddings: int,
    n_positions: int,
    text_len: int | None = None,
) -> torch.Tensor:
    """float32 [n_positions, rotary_dim / 2, 2]: cos and sin of each pair's angle at each position
    of a text of text_len tokens."""
    inv_freq, scale = inverse_frequencies(rope, head_dim, max_position_embeddings, text_len)
    angles = torch.outer(torch.arange(n_positions, dtype=torch.float32), inv_freq)
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


def _longrope_attention_factor(rope: RopeConfig, original: int) -> float:
    """LongRoPE (Ding et al., 2024, section 3.3)."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    return math.sqrt(1 + math.log(rope.factor) / math.log(original)) if rope.factor > 1 else 1.0
