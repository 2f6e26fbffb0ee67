"""Settings of every family with values changed at will: a ValueError or a result, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import changed_json
from toy_models import gemma3, mixtral, phi3, qwen2, qwen3_moe

from astrai.models.config_gguf import RopeVectors, config_from_gguf
from astrai.models.config_hf import config_from_hf
from astrai.text.gguf_tokenizer import tokenizer_from_gguf

FUZZ = settings(max_examples=60, deadline=None)
OPTIONAL = (
    *("layer_types", "rope_scaling", "rope_parameters", "rope_theta", "rope_local_base_freq"),
    *("partial_rotary_factor", "original_max_position_embeddings", "sliding_window"),
    *("sliding_window_pattern", "max_window_layers", "use_sliding_window", "head_dim"),
    *("hidden_act", "hidden_activation", "attention_bias", "mlp_bias", "quantization_config"),
    *("bos_token_id", "eos_token_id", "query_pre_attn_scalar", "attn_logit_softcapping"),
    *("num_experts", "num_experts_per_tok", "decoder_sparse_step", "mlp_only_layers"),
)
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "rope_theta": 10000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
MADE: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: qwen2(rope_parameters={**YARN, "rope_theta": 10000.0}),
    "phi3": lambda: phi3(rope_parameters=LONGROPE),
    "gemma3": gemma3,
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
}


def gives_or_refuses(read: Callable[[], object]) -> None:
    try:
        read()
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize("name", MADE)
def test_config_json(name: str) -> None:
    written = json.loads(MADE[name]().config.to_json_string(use_diff=False))
    whole = {**dict.fromkeys(OPTIONAL), **written, "architectures": [ARCHITECTURES[name]]}
    whole.pop("quantization_config")
    config_from_hf(whole)

    @FUZZ
    @given(data=st.data())
    def survives(data: st.DataObject) -> None:
        gives_or_refuses(lambda: config_from_hf(changed_json(data.draw, whole)))

    survives()


ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def as_gguf(values: Any) -> Any:
    """Lists of numbers as GGUF gives them."""
    if isinstance(values, Mapping):
        return {key: as_gguf(value) for key, value in values.items()}
    if isinstance(values, list) and values and all(type(v) in (int, float, bool) for v in values):
        return np.array([max(-(2.0**62), min(v, 2.0**62)) for v in values])
    return values


GGUF: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 3,
    "gemma3.context_length": 256,
    "gemma3.embedding_length": 64,
    "gemma3.feed_forward_length": 112,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 2,
    "gemma3.attention.key_length": 32,
    "gemma3.attention.value_length": 32,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 16,
    "gemma3.attention.sliding_window_pattern": [1, 1, 0],
    "gemma3.rope.freq_base": 1e6,
    "gemma3.rope.freq_base_swa": 1e4,
    "gemma3.rope.dimension_count": 32,
    "gemma3.rope.scaling.type": "yarn",
    "gemma3.rope.scaling.factor": 8.0,
    "gemma3.rope.scaling.attn_factor": 1.0,
    "gemma3.rope.scaling.original_context_length": 32,
    "gemma3.rope.scaling.yarn_beta_fast": 32.0,
    "gemma3.rope.scale_linear": 1.0,
    "gemma3.final_logit_softcapping": 30.0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.mark.parametrize("vectors", [RopeVectors(), RopeVectors((1.0,) * 16, (1.0,) * 16, (2.0,))])
def test_gguf_metadata(vectors: RopeVectors) -> None:
    config_from_gguf(as_gguf(GGUF), 300, has_output=True)

    @FUZZ
    @given(data=st.data())
    def survives(data: st.DataObject) -> None:
        metadata = as_gguf(changed_json(data.draw, GGUF))
        gives_or_refuses(lambda: config_from_gguf(metadata, 300, True, vectors))

    survives()


PIECES = ["<unk>", "<s>", "</s>", "<0x41>", "a", "b", "ab", "\u2581a", "\u2581\u2581"]
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.token_type": [2, 3, 3, 6, 1, 1, 1, 1, 4],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.ggml.remove_extra_whitespaces": True,
    "tokenizer.ggml.precompiled_charsmap": None,
}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5"])
def test_gguf_tokenizers(kind: str) -> None:
    whole = {**TOKENIZER, "tokenizer.ggml.model": kind}

    def encodes(metadata: dict[str, Any]) -> None:
        made = tokenizer_from_gguf(metadata)
        if made is not None:
            made.decode(made.encode(" ab A </s>", add_special_tokens=True, parse_special=False))

    encodes(as_gguf(whole))

    @FUZZ
    @given(data=st.data())
    def survives(data: st.DataObject) -> None:
        metadata = as_gguf(changed_json(data.draw, whole))
        gives_or_refuses(lambda: encodes(metadata))

    survives()
