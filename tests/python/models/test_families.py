"""Every family against transformers: logits, and greedy ids through the engine however it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ids import greedy_ids
from safetensors.torch import load_file, save_file
from toy_models import (
    gemma2,
    gemma3,
    glm4,
    granite,
    ministral,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    reference_logits,
)
from transformers import PreTrainedModel

from astrai.engine import InferenceEngine
from astrai.models import LoadedModel, ModelLoadError, load_model

TOLERANCE = 1e-4  # float32 sums in another order, on logits of size 10
N_PAIRS = 8  # of a head of 16 dimensions
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * n for n in range(N_PAIRS)],
    "long_factor": [2.0 + 0.5 * n for n in range(N_PAIRS)],
}
PARTIAL_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.4, 1.5, 1.6],
    "long_factor": [2.0, 2.1, 2.3, 2.4, 2.5, 2.6],
    "partial_rotary_factor": 0.75,
    "rope_theta": 10000.0,
}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen2": qwen2,
    "qwen2_upper_layers_slide": lambda: qwen2(
        use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3_upper_layers_slide": lambda: qwen3(
        use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "mistral": mistral,
    "mistral_without_window": lambda: mistral(seed=1, sliding_window=None),
    "ministral": lambda: ministral(
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "mixtral": mixtral,
    "mixtral_sliding": lambda: mixtral(seed=1, sliding_window=6, num_experts_per_tok=5),
    "qwen2_moe": qwen2_moe,
    "qwen2_moe_normed": lambda: qwen2_moe(seed=1, norm_topk_prob=True, qkv_bias=False),
    "qwen3_moe": lambda: qwen3_moe(seed=1, norm_topk_prob=True, num_experts_per_tok=1),
    # Layers 1 and 3 of 0 to 4 by the step, of which one is dense after all.
    "qwen3_moe_mixed": lambda: qwen3_moe(
        seed=1, num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "phi3": phi3,
    "phi3_partial": lambda: phi3(partial_rotary_factor=0.5),
    "phi3_sliding": lambda: phi3(sliding_window=7),
    "phi3_longrope": lambda: phi3(rope_parameters={**LONGROPE, "rope_theta": 10000.0}),
    # Texts that stay short, that start long, and that become long on the way.
    "phi3_partial_longrope": lambda: phi3(
        rope_parameters=PARTIAL_LONGROPE, original_max_position_embeddings=16
    ),
    "olmo2": olmo2,
    "olmo2_one_kv_head": lambda: olmo2(num_key_value_heads=1),
    "granite": lambda: granite(seed=2),
    "granite_biased": lambda: granite(attention_bias=True, mlp_bias=True),
    "glm4": glm4,
    "gemma2": gemma2,
    "gemma2_without_caps": lambda: gemma2(
        attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "gemma3": gemma3,
    "gemma3_scaled": lambda: gemma3(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        }
    ),
}
PROMPTS = [
    [3, 17, 90, 4, 4, 61, 33, 8, 71, 25, 2, 19, 50],
    [5],
    [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62],
    [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 9, 7],
]
N_NEW = 12
MODES: dict[str, dict[str, Any]] = {
    "contiguous": {"max_batch_size": 4},
    "chunks_of_5": {"max_batch_size": 4, "prefill_chunk": 5},
    "paged_chunks_of_3": {
        "kv_mode": "paged",
        "page_size": 4,
        "max_batch_size": 4,
        "prefill_chunk": 3,
    },
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    @cache
    def load(name: str) -> LoadedModel:
        folder = tmp_path_factory.mktemp(name)
        MODELS[name]().save_pretrained(folder)
        return load_model(folder, device="cpu", dtype="float32", progress=False)

    return load


@cache
def reference_ids(name: str) -> list[list[int]]:
    """Greedy ids of transformers without a cache, so that nothing of it can hide a mistake."""
    model = MODELS[name]()
    texts = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(N_NEW):
            best = reference_logits(model, ids)[-1].topk(2)
            assert best.values[0] - best.values[1] > 1e-3, "a tie would make this prompt useless"
            ids.append(int(best.indices[0]))
        texts.append(ids[len(prompt) :])
    return texts


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, loaded: Callable[[str], LoadedModel]) -> None:
    model = loaded(name).model
    ids = PROMPTS[2] + PROMPTS[0]
    logits = model.forward(torch.tensor(ids), torch.arange(len(ids)), None)
    torch.testing.assert_close(
        logits, reference_logits(MODELS[name](), ids), atol=TOLERANCE, rtol=TOLERANCE
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_ids_are_those_of_transformers(
    name: str, mode: str, loaded: Callable[[str], LoadedModel]
) -> None:
    model = loaded(name)
    expected = reference_ids(name)
    with InferenceEngine(model.model, None, end_ids=(), **MODES[mode]) as engine:
        assert [greedy_ids(engine, [prompt], N_NEW)[0] for prompt in PROMPTS] == expected
        assert greedy_ids(engine, PROMPTS, N_NEW) == expected
        if "paged" in mode:
            assert engine.get_stats()["prefix_hit_tokens"] > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("phi3", "model.layers.1.self_attn.qkv_proj.weight"),
        ("phi3", "model.layers.0.mlp.gate_up_proj.weight"),
        ("olmo2", "model.layers.1.post_feedforward_layernorm.weight"),
        ("olmo2", "model.layers.0.self_attn.q_norm.weight"),
        ("gemma2", "model.layers.0.pre_feedforward_layernorm.weight"),
        ("glm4", "model.layers.1.post_self_attn_layernorm.weight"),
        ("qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3_moe", "model.layers.1.mlp.experts.7.up_proj.weight"),
        ("qwen3_moe_mixed", "model.layers.3.mlp.up_proj.weight"),
        ("qwen2_moe", "model.layers.0.mlp.shared_expert_gate.weight"),
    ],
)
def test_a_missing_or_surplus_tensor_is_named(name: str, missing: str, tmp_path: Path) -> None:
    MODELS[name]().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[missing + "_of_another"] = tensors.pop(missing)
    save_file(tensors, path)
    with pytest.raises(ModelLoadError, match=f"{missing}' is missing"):
        load_model(tmp_path, device="cpu", progress=False)
    tensors[missing] = tensors[missing + "_of_another"].clone()
    save_file(tensors, path)
    family = name.removesuffix("_mixed")
    with pytest.raises(ModelLoadError, match=f"{missing}_of_another' has no place in a {family}"):
        load_model(tmp_path, device="cpu", progress=False)
