"""RoPE settings of a Hugging Face config.json, under every spelling, as `RopeConfig`s.

transformers 4 writes `rope_theta` and `rope_scaling` with `type` or `rope_type`, transformers 5
`rope_parameters`, where one object may hold another for each layer type. A field that the type does
not have, or one that two places give differently, is an error: whoever wrote it meant another
model than the one that would be computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config_keys import is_positive
from astrai.models.rope import ROPE_TYPES, RopeConfig

__all__ = ["rope_from_hf", "ropes_from_hf"]

_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_ORIGINAL = "original_max_position_embeddings"
_FIELDS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    # The length is the model's own: files that name it here repeat it.
    "dynamic": {"factor", _ORIGINAL},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL},
    "yarn": {
        *("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        *("truncate", _ORIGINAL),
        "finetuned",  # says how the weights were made; no formula reads it
    },
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor", _ORIGINAL},
}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ROPE_KEYS = {"rope_theta", "rope_scaling", "rope_parameters"}


def ropes_from_hf(
    config: Mapping[str, Any], defaults: Mapping[str, Any], has_sliding: bool
) -> tuple[RopeConfig, RopeConfig | None]:
    """(rope, local_rope): one for all layers, or one for each layer type.

    config: a config.json. defaults: values of keys that it may leave out. has_sliding: are there
    layers that slide. Raises ValueError as `rope_from_hf` does."""
    by_type = config.get("rope_parameters")
    is_nested = isinstance(by_type, Mapping) and any(key in by_type for key in _LAYER_TYPES)
    local_theta = config.get("rope_local_base_freq", defaults.get("rope_local_base_freq"))
    if not is_nested:
        rope = rope_from_hf(config, defaults)
        if local_theta is None or not has_sliding:
            return rope, None
        plain = {key: value for key, value in config.items() if key not in _ROPE_KEYS}
        # The base of the full layers stands beside it, and their scaling is not for these.
        return rope, rope_from_hf({**plain, "rope_theta": local_theta}, defaults)
    assert isinstance(by_type, Mapping)
    wanted = _LAYER_TYPES if has_sliding else ("full_attention",)
    if not {*wanted} <= {*by_type} <= {*_LAYER_TYPES}:
        raise ValueError(
            f"rope_parameters by layer type must name {' and '.join(wanted)}, got "
            f"{', '.join(map(str, by_type))}."
        )
    # One base beside both would contradict one of them.
    rest = {key: value for key, value in config.items() if key not in _ROPE_KEYS}
    theta = config.get("rope_theta", defaults.get("rope_theta"))
    bases = {"full_attention": theta, "sliding_attention": local_theta or theta}
    ropes = [
        rope_from_hf(
            {**rest, "rope_parameters": _object(by_type[name], f"rope_parameters.{name}")},
            {**defaults, "rope_theta": bases[name]},
        )
        for name in wanted
    ]
    return ropes[0], ropes[1] if has_sliding else None


def rope_from_hf(
    config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> RopeConfig:
    """The RoPE settings that a config.json gives all layers, or those of one layer type.

    defaults: values of top-level keys that it may leave out. Raises ValueError that names the field
    for anything that is missing, unknown, contradictory, or that this engine does not compute."""
    return _Settings(config, defaults or {}).rope()


class _Settings:
    """One RoPE object of a config.json, and the keys beside it."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._config = config
        self._defaults = defaults
        scaling, parameters = config.get("rope_scaling"), config.get("rope_parameters")
        if scaling and parameters and scaling != parameters:
            raise ValueError("rope_scaling and rope_parameters are both given and differ.")
        self._spelled = "rope_scaling" if parameters is None else "rope_parameters"
        self._given = _object(scaling if parameters is None else parameters, self._spelled)
        for key, value in self._given.items():
            if isinstance(value, Mapping):
                raise ValueError(
                    f"{self._spelled}.{key} is an object: settings by layer type are for "
                    f"{' and '.join(_LAYER_TYPES)} of families with windows."
                )
        self._type = self._rope_type()
        unknown = {k for k, v in self._given.items() if v is not None}
        unknown -= _COMMON | _FIELDS[self._type]
        if unknown:
            fields = ", ".join(sorted(_FIELDS[self._type] | _COMMON))
            raise ValueError(
                f"{self._spelled}.{min(unknown)} is no field of rope_type {self._type!r}, "
                f"which has {fields}."
            )

    def rope(self) -> RopeConfig:
        is_long = self._type == "longrope"
        settings = RopeConfig(
            rope_type=self._type,
            theta=self._shared_number("rope_theta", 10000.0),
            factor=self._factor(),
            original_max_len=self._original(),
            low_freq_factor=self._number("low_freq_factor", 1.0, needed=self._type == "llama3"),
            high_freq_factor=self._number("high_freq_factor", 4.0, needed=self._type == "llama3"),
            attention_factor=self._optional("attention_factor"),
            beta_fast=self._number("beta_fast", 32.0),
            beta_slow=self._number("beta_slow", 1.0),
            mscale=self._optional("mscale"),
            mscale_all_dim=self._optional("mscale_all_dim"),
            truncate=self._truncate(),
            short_factors=self._factors("short_factor") if is_long else None,
            long_factors=self._factors("long_factor") if is_long else None,
            partial_factor=self._partial(),
        )
        if settings.high_freq_factor <= settings.low_freq_factor:
            raise ValueError(self._order("high_freq_factor", "low_freq_factor"))
        if settings.beta_fast < settings.beta_slow:
            raise ValueError(self._order("beta_fast", "beta_slow"))
        return settings

    def _rope_type(self) -> str:
        named = [self._given[key] for key in ("rope_type", "type") if self._given.get(key)]
        types = [_canonical_type(name, "long_factor" in self._given) for name in named]
        if len(types) == 2 and types[0] != types[1]:
            raise ValueError(
                f"{self._spelled} has rope_type {named[0]!r} and type {named[1]!r}; they must "
                f"agree."
            )
        rope_type = types[0] if types else "default"
        if rope_type not in ROPE_TYPES:
            raise ValueError(
                f"{self._spelled} has rope_type {rope_type!r}; supported are "
                f"{', '.join(ROPE_TYPES)}."
            )
        return str(rope_type)

    def _optional(self, key: str) -> float | None:
        return _positive(self._given.get(key), f"{self._spelled}.{key}")

    def _number(self, key: str, default: float, needed: bool = False) -> float:
        value = self._optional(key)
        if value is None and needed:
            raise ValueError(f"{self._spelled}.{key} is missing (rope_type {self._type!r}).")
        return default if value is None else value

    def _shared(self, key: str) -> float | None:
        """A number that may stand in the object, beside it, or in both alike."""
        inside, beside = self._optional(key), _positive(self._config.get(key), key)
        if inside is not None and beside is not None and inside != beside:
            raise ValueError(
                f"{key} is {beside:g}, but {self._spelled}.{key} is {inside:g}; they must agree."
            )
        found = beside if inside is None else inside
        return _positive(self._defaults.get(key), key) if found is None else found

    def _shared_number(self, key: str, default: float) -> float:
        value = self._shared(key)
        return default if value is None else value

    def _factor(self) -> float:
        factor = self._optional("factor")
        if factor is None:
            return self._implied_factor()
        if factor < 1:
            raise ValueError(f"{self._spelled}.factor must be at least 1, got {factor:g}.")
        return factor

    def _implied_factor(self) -> float:
        if self._type == "default":
            return 1.0
        original = self._original()
        key = "max_position_embeddings"
        context = _positive(self._config.get(key) or self._defaults.get(key), key)
        if self._type in ("yarn", "longrope") and original is not None and context is not None:
            return context / original
        if self._type == "longrope":
            return 1.0
        raise ValueError(f"{self._spelled}.factor is missing (rope_type {self._type!r} needs it).")

    def _original(self) -> int | None:
        """Tokens of the context before scaling; None: max_position_embeddings."""
        if self._type in ("default", "linear", "dynamic"):
            return None
        value = self._shared(_ORIGINAL)
        if value is not None and value != int(value):
            raise ValueError(f"{_ORIGINAL} must be a whole number, got {value:g}.")
        return None if value is None else int(value)

    def _partial(self) -> float:
        value = self._shared_number("partial_rotary_factor", 1.0)
        if value > 1:
            raise ValueError(f"partial_rotary_factor must be a number up to 1, got {value:g}.")
        return value

    def _truncate(self) -> bool:
        value = self._given.get("truncate")
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{self._spelled}.truncate must be true or false, got {value!r}.")
        return value is not False

    def _factors(self, key: str) -> tuple[float, ...]:
        values = self._given.get(key)
        if not isinstance(values, list) or not values or None in values:
            raise ValueError(
                f"{self._spelled}.{key} must be a list of numbers above 0 (rope_type 'longrope', "
                f"also called 'su', needs it), got {values!r}."
            )
        where = f"{self._spelled}.{key}"
        return tuple(_positive(value, where) or 1.0 for value in values)

    def _order(self, larger: str, smaller: str) -> str:
        return f"{self._spelled}.{larger} must be above {self._spelled}.{smaller}."


def _canonical_type(name: object, has_long_factor: bool) -> object:
    """Early Phi-3 files call longrope "su", or "yarn" with lists of factors."""
    return "longrope" if name == "su" or (name == "yarn" and has_long_factor) else name


def _object(value: object, key: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must be an object, got {type(value).__name__}.")
    return value


def _positive(value: object, key: str) -> float | None:
    if value is None:
        return None
    if not is_positive(value):
        raise ValueError(f"{key} must be a number above 0, got {value!r}.")
    return float(value)  # type: ignore[arg-type]  # is_positive takes numbers alone
