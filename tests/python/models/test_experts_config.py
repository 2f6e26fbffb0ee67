"""Mixtures of experts in config.json and GGUF metadata: defaults, spellings, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from astrai.models.config_gguf import config_from_gguf
from astrai.models.config_hf import config_from_hf
from astrai.models.experts_config import ExpertsConfig

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}


def experts_of(architecture: str, **values: Any) -> ExpertsConfig:
    experts = config_from_hf({**SIZES, "architectures": [architecture], **values}).experts
    assert experts is not None
    return experts


def test_what_a_file_leaves_out_is_as_the_authors_have_it() -> None:
    assert experts_of("MixtralForCausalLM") == ExpertsConfig(8, 2, 112, norm_topk_prob=True)
    assert experts_of("Qwen2MoeForCausalLM") == ExpertsConfig(
        60, 4, 1408, norm_topk_prob=False, shared_size=5632
    )
    assert experts_of("Qwen3MoeForCausalLM") == ExpertsConfig(128, 8, 768, norm_topk_prob=False)


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_has_two_names(key: str) -> None:
    assert experts_of("Qwen3MoeForCausalLM", **{key: 16}).n_experts == 16


@pytest.mark.parametrize(
    ("values", "sparse"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"mlp_only_layers": [0, 4]}, [1, 2, 3, 5]),
        ({"decoder_sparse_step": 2}, [1, 3, 5]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
        ({"decoder_sparse_step": 7}, []),
    ],
)
def test_layers_have_experts_by_step_and_exception(values: Any, sparse: list[int]) -> None:
    config = config_from_hf({**SIZES, "architectures": ["Qwen3MoeForCausalLM"], **values})
    assert [i for i in range(6) if config.experts_of(i) is not None] == sparse


def test_qwen2_moe_has_biases_unless_it_says_otherwise() -> None:
    base = {**SIZES, "architectures": ["Qwen2MoeForCausalLM"]}
    assert config_from_hf(base).attention_bias
    assert not config_from_hf({**base, "qkv_bias": False}).attention_bias
    assert not config_from_hf(base).o_bias


@pytest.mark.parametrize(
    ("architecture", "values", "named"),
    [
        ("Qwen3MoeForCausalLM", {"num_experts": 4}, "8 experts, there are 4"),
        ("Qwen3MoeForCausalLM", {"num_experts": 0}, "num_experts"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": ["1"]}, "mlp_only_layers"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": 3}, "mlp_only_layers"),
        ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": 1}, "norm_topk_prob"),
        ("Qwen3MoeForCausalLM", {"use_sliding_window": True}, "sliding-window"),
        ("Qwen2MoeForCausalLM", {"shared_expert_intermediate_size": -1}, "shared_expert"),
        ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "9 experts, there are 8"),
    ],
)
def test_wrong_settings_are_errors_that_name_the_key(
    architecture: str, values: Any, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        experts_of(architecture, **values)


def gguf_of(arch: str, **values: Any) -> dict[str, Any]:
    sizes = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "expert_count": 8,
        "expert_used_count": 2,
        **values,
    }
    named = {f"{arch}.{key}": value for key, value in sizes.items()}
    return {"general.architecture": arch, **named}


def gguf_experts(arch: str, **values: Any) -> ExpertsConfig | None:
    return config_from_gguf(gguf_of(arch, **values), 300, has_output=True).experts


def test_gguf_files_called_llama_are_mixtral_where_they_count_experts() -> None:
    config = config_from_gguf(gguf_of("llama"), 300, has_output=True)
    assert config.architecture == "mixtral"
    assert config.experts == ExpertsConfig(8, 2, 96, norm_topk_prob=True)
    dense = config_from_gguf(gguf_of("llama", expert_count=0), 300, has_output=True)
    assert (dense.architecture, dense.experts) == ("llama", None)


def test_gguf_sizes_of_experts_have_the_authors_defaults() -> None:
    assert gguf_experts("qwen2moe") == ExpertsConfig(8, 2, 48, False, shared_size=96)
    stated = {"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 40}
    assert gguf_experts("qwen2moe", **stated) == ExpertsConfig(8, 2, 24, False, shared_size=40)
    assert gguf_experts("qwen3moe", expert_feed_forward_length=24) == ExpertsConfig(8, 2, 24, True)


def test_gguf_files_may_say_whether_weights_are_scaled() -> None:
    unscaled = gguf_experts("qwen3moe", expert_feed_forward_length=24, expert_weights_norm=False)
    assert unscaled is not None
    assert not unscaled.norm_topk_prob


def test_experts_of_a_family_without_them_are_refused() -> None:
    with pytest.raises(ValueError, match=r"qwen2.expert_count: a qwen2 model has no experts"):
        gguf_experts("qwen2")
