"""`ModelConfig` from a Hugging Face config.json, in the key names of transformers 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.config import Activation, ModelConfig
from astrai.models.config_keys import Keys, first_id, token_ids
from astrai.models.families import Family
from astrai.models.registry import family_of_hf
from astrai.models.rope_hf import ropes_from_hf

__all__ = ["config_from_hf"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_WHOLE_MODEL_KEYS = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
# Where a null says that there is none of it, not what the family has by default.
_OFF_BY_NULL = {"sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}
_MAX_PATTERN = 1 << 16  # layers; a file could ask for any number


def config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig of a parsed config.json.

    Raises ValueError for an unknown architecture and for settings this engine does not compute."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ValueError("architectures must be a list that names one, such as LlamaForCausalLM.")
    try:
        family = family_of_hf(architectures[0])
    except ValueError as error:
        if "auto_map" not in config:
            raise
        raise ValueError(f"{error} Code of its own (auto_map) is never run.") from None
    text = _text_values(config)
    values = {**family.hf_defaults, **text}
    keys = Keys(values)
    if config.get("quantization_config"):
        raise ValueError("quantization_config: quantised folders are not supported; use GGUF.")
    hidden_size, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    attention_bias = keys.flag(family.hf_bias_key)
    window, pattern = _windows(keys, family)
    rope, local_rope = ropes_from_hf(text, family.hf_defaults, any(pattern))
    return ModelConfig(
        architecture=family.name,
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden_size,
        n_layers=keys.size("num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=keys.size("num_key_value_heads", n_heads),
        head_dim=keys.size("head_dim", hidden_size // n_heads),
        intermediate_size=keys.size("intermediate_size"),
        rms_norm_eps=keys.positive("rms_norm_eps", 1e-6),
        tie_word_embeddings=keys.flag("tie_word_embeddings"),
        max_position_embeddings=keys.size("max_position_embeddings"),
        rope=rope,
        local_rope=local_rope,
        use_qk_norm=family.qk_norm is not None,
        attention_bias=attention_bias,
        o_bias=attention_bias and family.has_o_bias,
        mlp_bias=keys.flag("mlp_bias"),
        activation=_activation(keys),
        sliding_window=window,
        sliding_pattern=pattern,
        bos_token_id=first_id(values.get("bos_token_id")),
        eos_token_ids=token_ids(values.get("eos_token_id"), "eos_token_id"),
        **family.hf_fields(keys),
    )


def _text_values(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of the text model, which a model that also sees keeps in text_config. Nulls are left
    out, but for those that switch something off."""
    text = config.get("text_config")
    if text is None:
        return _stated(config)
    if not isinstance(text, Mapping):
        raise ValueError(f"text_config must be an object, got {text!r}.")
    # What the whole model says of its vocabulary holds; a chat ends with the ids named there.
    whole = {key: config[key] for key in _WHOLE_MODEL_KEYS if config.get(key) is not None}
    return _stated({**text, **whole})


def _stated(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: v for key, v in values.items() if v is not None or key in _OFF_BY_NULL}


def _activation(keys: Keys) -> Activation:
    for key in ("hidden_activation", "hidden_act"):
        name = keys.get(key)
        if name is None:
            continue
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise ValueError(f"{key} {name!r} is not supported; supported are {known}.")
        return _ACTIVATIONS[name]
    return "silu"


def _windows(keys: Keys, family: Family) -> tuple[int | None, tuple[bool, ...]]:
    """(sliding_window, sliding_pattern)."""
    layer_types = keys.get("layer_types")
    if family.sliding_pattern is None:
        is_full = layer_types is None or (
            isinstance(layer_types, list) and all(kind == "full_attention" for kind in layer_types)
        )
        if keys.flag("use_sliding_window") or not is_full:
            raise ValueError(f"sliding-window attention is not part of a {family.name} model.")
        return None, (False,)
    if "use_sliding_window" in family.hf_defaults and not keys.flag("use_sliding_window"):
        return None, (False,)
    window = keys.optional_size("sliding_window")
    if layer_types is not None:
        pattern = _explicit_pattern(layer_types, keys.size("num_hidden_layers"))
        if any(pattern) and window is None:
            raise ValueError("sliding_window is missing, although layer_types has sliding layers.")
    elif window is None:
        return None, (False,)
    else:
        pattern = _implied_pattern(keys, family.sliding_pattern)
    return (window, pattern) if any(pattern) else (None, (False,))


def _explicit_pattern(layer_types: object, n_layers: int) -> tuple[bool, ...]:
    if not isinstance(layer_types, list) or len(layer_types) != n_layers:
        raise ValueError(f"layer_types must be a list of num_hidden_layers ({n_layers}) names.")
    for kind in layer_types:
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(
                f"layer_types has {kind!r}; supported are full_attention and sliding_attention "
                f"(sliding-window layers)."
            )
    return tuple(kind == "sliding_attention" for kind in layer_types)


def _implied_pattern(keys: Keys, default: tuple[bool, ...]) -> tuple[bool, ...]:
    every = keys.optional_size("sliding_window_pattern")
    if every is not None:  # each `every`th layer is full
        return (True,) * (min(every, _MAX_PATTERN) - 1) + (False,)
    n_full = keys.get("max_window_layers")
    if n_full is not None:  # the first ones are full
        n_layers = min(keys.size("num_hidden_layers"), _MAX_PATTERN)
        if isinstance(n_full, bool) or not isinstance(n_full, int) or n_full < 0:
            raise ValueError(f"max_window_layers must be a whole number, got {n_full!r}.")
        return tuple(layer_id >= n_full for layer_id in range(n_layers))
    return default
