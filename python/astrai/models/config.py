"""`ModelConfig`: the numbers that describe a decoder, read from config.json or GGUF metadata.

Readers check every value they use, since files are input too: a wrong one is a ValueError that
names the key. Nothing is allocated here; sizes are compared with the tensors by the loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astrai.models.registry import family_of_gguf, family_of_hf
from astrai.models.rope import RopeConfig, rope_from_hf

__all__ = ["ModelConfig", "config_from_gguf", "config_from_hf"]

_LIMIT = 1 << 31  # sizes are int32 in the kernels' parameters


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of one decoder-only model."""

    architecture: str  # family name, such as "llama"
    vocab_size: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int  # tokens of context
    rope: RopeConfig = field(default_factory=RopeConfig)
    use_qk_norm: bool = False
    attention_bias: bool = False  # on q, k, v and o
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary pairs need an even one.")


class _Keys:
    """Typed look-ups in a mapping; messages name the key."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = values
        self._defaults = defaults

    def get(self, key: str) -> Any:
        value = self._values.get(key)
        return self._defaults.get(key) if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{key} is missing.")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LIMIT:
            raise ValueError(f"{key} must be a whole number from 1 to {_LIMIT - 1}, got {value!r}.")
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{key} must be a number above 0, got {value!r}.")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false, got {value!r}.")
        return value


def config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig of a parsed config.json.

    Raises ValueError for an unknown architecture and for settings this engine does not compute."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ValueError("architectures must be a list that names one, such as LlamaForCausalLM.")
    family = family_of_hf(architectures[0])
    keys = _Keys(config, family.hf_defaults)
    _refuse_unsupported(config)
    hidden_size, n_heads = keys.size("hidden_size"), keys.size("num_attention_heads")
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
        rope=rope_from_hf(config),
        use_qk_norm=family.has_qk_norm,
        attention_bias=keys.flag("attention_bias"),
        mlp_bias=keys.flag("mlp_bias"),
        bos_token_id=_first_id(config.get("bos_token_id")),
        eos_token_ids=token_ids(config.get("eos_token_id"), "eos_token_id"),
    )


def config_from_gguf(
    metadata: Mapping[str, Any],
    embedding_rows: int,
    has_output: bool,
    frequency_divisors: tuple[float, ...] | None = None,
    has_attention_bias: bool = False,
) -> ModelConfig:
    """The ModelConfig of a GGUF file.

    embedding_rows: rows of token_embd.weight (vocab_size where the metadata has none).
    has_output: is there an output.weight; without one the embeddings are tied.
    frequency_divisors: values of rope_freqs.weight."""
    family = family_of_gguf(metadata.get("general.architecture"))
    prefix = f"{family.gguf_architecture}."
    keys = _Keys(metadata, {})
    hidden_size = keys.size(prefix + "embedding_length")
    n_heads = keys.size(prefix + "attention.head_count")
    head_dim = keys.size(prefix + "attention.key_length", hidden_size // n_heads)
    if keys.size(prefix + "attention.value_length", head_dim) != head_dim:
        raise ValueError(f"{prefix}attention.value_length differs from key_length.")
    if keys.size(prefix + "rope.dimension_count", head_dim) != head_dim:
        raise ValueError(f"{prefix}rope.dimension_count: partial rotary is not supported.")
    if metadata.get(prefix + "expert_count"):
        raise ValueError(f"{prefix}expert_count: mixtures of experts are not supported.")
    max_len = keys.size(prefix + "context_length")
    return ModelConfig(
        architecture=family.name,
        vocab_size=embedding_rows,
        hidden_size=hidden_size,
        n_layers=keys.size(prefix + "block_count"),
        n_heads=n_heads,
        n_kv_heads=keys.size(prefix + "attention.head_count_kv", n_heads),
        head_dim=head_dim,
        intermediate_size=keys.size(prefix + "feed_forward_length"),
        rms_norm_eps=keys.positive(prefix + "attention.layer_norm_rms_epsilon", 1e-6),
        tie_word_embeddings=not has_output,
        max_position_embeddings=max_len,
        rope=_rope_from_gguf(keys, prefix, frequency_divisors),
        use_qk_norm=family.has_qk_norm,
        attention_bias=has_attention_bias,
        bos_token_id=_first_id(metadata.get("tokenizer.ggml.bos_token_id")),
        eos_token_ids=token_ids(
            metadata.get("tokenizer.ggml.eos_token_id"), "tokenizer.ggml.eos_token_id"
        ),
    )


def token_ids(value: object, key: str) -> tuple[int, ...]:
    """Token ids of a key that may hold null, one id or a list of ids."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ValueError(f"{key} must be a token id or a list of them, got {value!r}.")
    return tuple(ids)


def _first_id(value: object) -> int | None:
    ids = token_ids(value, "bos_token_id")
    return ids[0] if ids else None


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act {config['hidden_act']!r} is not supported; silu is.")
    if config.get("quantization_config"):
        raise ValueError("quantization_config: quantised folders are not supported; use GGUF.")
    layer_types = config.get("layer_types") or []
    if config.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ValueError("sliding-window attention is not supported.")


def _rope_from_gguf(
    keys: _Keys, prefix: str, frequency_divisors: tuple[float, ...] | None
) -> RopeConfig:
    scaling = keys.get(prefix + "rope.scaling.type") or "none"
    rope_type = {"none": "default", "linear": "linear", "yarn": "yarn"}.get(scaling)
    if rope_type is None:
        raise ValueError(f"{prefix}rope.scaling.type {scaling!r} is not supported.")
    original = keys.get(prefix + "rope.scaling.original_context_length")
    return RopeConfig(
        rope_type=rope_type,
        theta=keys.positive(prefix + "rope.freq_base", 10000.0),
        factor=keys.positive(prefix + "rope.scaling.factor", 1.0),
        original_max_len=original or None,
        frequency_divisors=frequency_divisors,
    )
