"""ModelConfig from config.json and from GGUF metadata: what is read and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from astrai.models.config_gguf import config_from_gguf
from astrai.models.config_hf import config_from_hf

HF: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
GGUF: dict[str, Any] = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 3,
    "qwen3.context_length": 256,
    "qwen3.embedding_length": 64,
    "qwen3.feed_forward_length": 112,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 32,
    "qwen3.attention.value_length": 32,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.rope.freq_base": 1e6,
}


def test_absent_keys_have_their_familys_defaults() -> None:
    config = config_from_hf({key: HF[key] for key in HF if key != "num_key_value_heads"})
    assert (config.head_dim, config.n_kv_heads) == (16, 4)
    assert not config.tie_word_embeddings
    qwen = config_from_hf({**HF, "architectures": ["Qwen3ForCausalLM"]})
    assert qwen.head_dim == 128
    assert qwen.use_qk_norm


def test_head_dim_is_apart_from_hidden_size_over_heads() -> None:
    assert config_from_hf({**HF, "head_dim": 24}).head_dim == 24
    assert config_from_gguf(GGUF, 300, has_output=True).head_dim == 32


@pytest.mark.parametrize(("value", "ids"), [(None, ()), (2, (2,)), ([2, 7], (2, 7))])
def test_end_ids_may_be_null_one_or_several(value: Any, ids: tuple[int, ...]) -> None:
    assert config_from_hf({**HF, "eos_token_id": value}).eos_token_ids == ids


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*LlamaForCausalLM"),
        ({"architectures": []}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "n_kv_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1.0}}}, "layer type"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"eos_token_id": [2, None]}, "eos_token_id"),
        ({"bos_token_id": -1}, "bos_token_id"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_key(change: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        config_from_hf({**HF, **change})


def test_gguf_metadata_describes_the_model() -> None:
    config = config_from_gguf(GGUF, 300, has_output=False)
    assert (config.n_layers, config.n_heads, config.n_kv_heads) == (3, 4, 2)
    assert config.vocab_size == 300
    assert config.tie_word_embeddings
    assert config.rope.theta == 1e6


def test_gguf_rope_scaling_is_read() -> None:
    scaled = {
        **GGUF,
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 64,
    }
    rope = config_from_gguf(scaled, 300, has_output=True).rope
    assert (rope.rope_type, rope.factor, rope.original_max_len) == ("yarn", 4.0, 64)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "rwkv"}, "rwkv.*llama"),
        ({"qwen3.block_count": None}, "qwen3.block_count"),
        ({"qwen3.attention.head_count": 0}, "head_count"),
        ({"qwen3.attention.value_length": 16}, "value_length"),
        ({"qwen3.rope.dimension_count": 40}, "40 dimensions"),
        ({"qwen3.rope.scaling.type": "longrope"}, "longrope"),
        ({"qwen3.expert_count": 8}, "expert_count"),
        ({"qwen3.attention.layer_norm_rms_epsilon": 0.0}, "epsilon"),
    ],
)
def test_wrong_gguf_metadata_is_an_error_that_names_its_key(change: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        config_from_gguf({**GGUF, **change}, 300, has_output=True)
