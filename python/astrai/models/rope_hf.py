"""RoPE settings of a Hugging Face config.json, under every spelling, as a `RopeConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import Keys, is_positive
from astrai.models.rope import ROPE_TYPES, RopeConfig

__all__ = ["rope_from_hf"]


def rope_from_hf(config: Mapping[str, Any]) -> RopeConfig:
    """RoPE settings of a config.json, in the transformers 4 spelling (`rope_theta`, `rope_scaling`
    with `type` or `rope_type`) or the transformers 5 one (`rope_parameters`).

    Raises ValueError that names the setting for anything this engine does not compute."""
    spelled = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    given = config.get(spelled) or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{spelled} must be an object, got {type(given).__name__}.")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise ValueError(f"{spelled} differs by layer type, which only families with windows have.")
    rope_type = given.get("rope_type", given.get("type", "default"))
    if rope_type == "su" or (rope_type == "yarn" and "long_factor" in given):
        rope_type = "longrope"  # names that early Phi-3 files gave it
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"{spelled} has rope_type {rope_type!r}; supported are {', '.join(ROPE_TYPES)}."
        )
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    partial = 1.0 if partial is None else partial
    if isinstance(partial, bool) or not isinstance(partial, int | float) or not 0 < partial <= 1:
        raise ValueError(f"partial_rotary_factor must be a number up to 1, got {partial!r}.")

    def number(key: str, default: float | None) -> Any:
        value = given.get(key)
        if value is None:
            value = default
        if value is None:
            return None
        if not is_positive(value):
            raise ValueError(f"{spelled}.{key} must be a number above 0, got {value!r}.")
        return value

    lengths = Keys(config)
    original = number("original_max_position_embeddings", None)
    if original is None:
        original = lengths.optional_size("original_max_position_embeddings")
    factor = number("factor", None)
    if factor is None:
        max_len = lengths.optional_size("max_position_embeddings")
        if rope_type in ("yarn", "longrope") and original and max_len:
            factor = max_len / original
        elif rope_type != "default":
            named = given.get("rope_type", given.get("type"))
            raise ValueError(f"{spelled}.factor is missing (rope_type {named!r} needs it).")
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
        short_factors=_factors(given, spelled, "short_factor") if rope_type == "longrope" else None,
        long_factors=_factors(given, spelled, "long_factor") if rope_type == "longrope" else None,
        partial_factor=float(partial),
    )


def _factors(given: Mapping[str, Any], spelled: str, key: str) -> tuple[float, ...]:
    values = given.get(key)
    if not isinstance(values, list) or not all(map(is_positive, values)):
        raise ValueError(
            f"{spelled}.{key} must be a list of numbers above 0 (rope_type 'longrope', also called "
            f"'su', needs it), got {values!r}."
        )
    return tuple(float(value) for value in values)
