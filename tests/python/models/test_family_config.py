"""config.json of the families: defaults, windows, scales and rotary settings in both spellings."""

from __future__ import annotations

from typing import Any

import pytest

from astrai.models.config import ModelConfig
from astrai.models.config_hf import config_from_hf
from astrai.models.registry import FAMILIES
from astrai.models.rope import RopeConfig
from astrai.models.rope_hf import rope_from_hf

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}


def config_of(architecture: str, **values: Any) -> ModelConfig:
    return config_from_hf({**SIZES, "architectures": [architecture], **values})


def windows(config: ModelConfig) -> list[int | None]:
    return [config.window_of(layer_id) for layer_id in range(config.n_layers)]


def test_every_architecture_is_of_one_family() -> None:
    names = [name for family in FAMILIES for name in family.hf_architectures]
    assert len(set(names)) == len(names)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("architecture", "values", "expected"),
    [
        ("MistralForCausalLM", {}, [4096] * 6),
        ("MistralForCausalLM", {"sliding_window": None}, [None] * 6),
        ("Qwen2ForCausalLM", {"sliding_window": 32}, [None] * 6),
        (
            "Qwen2ForCausalLM",
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 4},
            [None] * 4 + [32] * 2,
        ),
        ("Phi3ForCausalLM", {}, [None] * 6),
        ("Gemma2ForCausalLM", {"sliding_window": 8}, [8, None] * 3),
        ("Gemma3ForCausalLM", {"sliding_window": 8}, [8] * 5 + [None]),
        ("Gemma3ForCausalLM", {"sliding_window": 8, "sliding_window_pattern": 2}, [8, None] * 3),
        (
            "MinistralForCausalLM",
            {"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"] * 3},
            [None, 8] * 3,
        ),
    ],
)
def test_windows_are_those_of_the_layers(
    architecture: str, values: Any, expected: list[int | None]
) -> None:
    assert windows(config_of(architecture, **values)) == expected


def test_gemma_has_its_authors_defaults() -> None:
    config = config_of("Gemma2ForCausalLM")
    assert (config.head_dim, config.activation) == (256, "gelu_tanh")
    assert config.tie_word_embeddings
    assert (config.attn_soft_cap, config.logit_soft_cap) == (50.0, 30.0)
    assert config.sm_scale == 256**-0.5
    assert config.embedding_scale == 8.0
    uncapped = config_of("Gemma2ForCausalLM", attn_logit_softcapping=None)
    assert (uncapped.attn_soft_cap, uncapped.logit_soft_cap) == (None, 30.0)


# Nulls of these switch something off.
OFF = {"sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}
COMMON = {"head_dim", "num_key_value_heads", "rope_theta", "rope_scaling", "rope_parameters"}
COMMON |= {"hidden_act", "rms_norm_eps", "layer_types", "quantization_config", "mlp_bias"}


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        (family.hf_architectures[0], key)
        for family in FAMILIES
        for key in sorted(COMMON | family.hf_defaults.keys() - OFF)
    ],
)
def test_a_null_means_what_a_family_has_by_default(architecture: str, key: str) -> None:
    stated = {"moe_intermediate_size": 16, **SIZES}  # what some families have no default for
    stated.pop(key, None)
    expected = config_from_hf({**stated, "architectures": [architecture]})
    assert config_from_hf({**stated, "architectures": [architecture], key: None}) == expected


def test_a_null_base_of_sliding_layers_is_the_familys() -> None:
    nested = {
        "full_attention": {"rope_type": "default", "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": None},
    }
    for values in ({"rope_local_base_freq": None}, {"rope_parameters": nested, "rope_theta": None}):
        config = config_of("Gemma3ForCausalLM", **values)
        assert config.local_rope == RopeConfig(theta=10000.0)


def test_gemma3_has_a_base_for_each_layer_type_in_both_spellings() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = config_of(
        "Gemma3ForCausalLM", rope_theta=2e6, rope_local_base_freq=5e3, rope_scaling=scaling
    )
    new = config_of(
        "Gemma3ForCausalLM",
        rope_parameters={
            "full_attention": {**scaling, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
    )
    assert (old.rope, old.local_rope) == (new.rope, new.local_rope)
    assert old.rope == RopeConfig("linear", theta=2e6, factor=8.0)
    assert old.local_rope == RopeConfig(theta=5e3)


def test_partial_rotary_is_read_from_both_places() -> None:
    assert config_of("Glm4ForCausalLM").rotary_dim == 64
    old = config_of("Phi3ForCausalLM", partial_rotary_factor=0.75)
    new = config_of("Phi3ForCausalLM", rope_parameters={"partial_rotary_factor": 0.75})
    assert old.rotary_dim == new.rotary_dim == 12


@pytest.mark.parametrize("rope_type", ["longrope", "su", "yarn"])
def test_longrope_has_several_names(rope_type: str) -> None:
    factors = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4]}
    rope = rope_from_hf(
        {
            "rope_scaling": {"type": rope_type, **factors},
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 16,
        }
    )
    assert rope == RopeConfig(
        "longrope",
        factor=4.0,
        original_max_len=16,
        short_factors=(1.0, 2.0),
        long_factors=(3.0, 4.0),
    )


def test_biases_are_of_the_projections_that_the_family_means() -> None:
    qwen = config_of("Qwen2ForCausalLM")
    assert (qwen.attention_bias, qwen.o_bias) == (True, False)
    granite = config_of("GraniteForCausalLM", attention_bias=True)
    assert (granite.attention_bias, granite.o_bias) == (True, True)


@pytest.mark.parametrize(
    ("architecture", "values", "named"),
    [
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window"),
        ("MistralForCausalLM", {"sliding_window": "big"}, "sliding_window"),
        ("MistralForCausalLM", {"layer_types": ["sliding_attention"]}, "layer_types"),
        ("MistralForCausalLM", {"layer_types": ["chunked_attention"] * 6}, "chunked_attention"),
        (
            "MinistralForCausalLM",
            {"layer_types": ["sliding_attention"] * 6, "sliding_window": None},
            "sliding_window is missing",
        ),
        ("Gemma2ForCausalLM", {"hidden_activation": "relu"}, "hidden_activation"),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": 0}, "attn_logit_softcapping"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "bidirectional"),
        (
            "Gemma3ForCausalLM",
            {"rope_parameters": {"full_attention": {}, "other": {}}},
            "full_attention and sliding_attention",
        ),
        ("GraniteForCausalLM", {"residual_multiplier": "x"}, "residual_multiplier"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.2}, "partial_rotary_factor"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "short_factor",
        ),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "longrope", "short_factor": 3, "long_factor": [1.0]}},
            "short_factor",
        ),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(
    architecture: str, values: Any, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        config_of(architecture, **values)
