"""Families in odd shapes against transformers: sizes, windows, scalings, biases and ties that no
table of ours lists, drawn from a seed. Each model runs through the engine in chunks, in a batch,
with a prefix hit, in both KV modes; every token is then checked by transformers' own logits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ids import greedy_ids
from toy_models import (
    gemma2,
    gemma3,
    glm4,
    granite,
    llama,
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
from astrai.models import load_model
from astrai.models.rope import ROPE_TYPES

N_SEEDS = 3
N_NEW = 5
TIE = 2e-3  # logits this near to each other may change places
TOLERANCE = 3e-4  # float32 sums in another order, on logits of size 30
ORIGINAL = 20  # tokens of the context before scaling

Draw = Callable[[random.Random], dict[str, Any]]


def shape(rng: random.Random) -> dict[str, Any]:
    n_heads, n_kv_heads = rng.choice([(1, 1), (3, 1), (4, 2), (6, 2), (5, 5), (6, 3), (8, 1)])
    head_dim = rng.choice([8, 16, 24, 32, 48])
    return {
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": head_dim,
        "hidden_size": n_heads * head_dim,
        "intermediate_size": rng.choice([20, 56, 99, 130]),
        "num_hidden_layers": rng.choice([1, 2, 3]),
        "vocab_size": rng.choice([90, 97, 130]),
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
    }


def free_width(rng: random.Random) -> dict[str, Any]:
    """hidden_size apart from heads times head_dim, though a multiple of the heads."""
    sizes = shape(rng)
    return {**sizes, "hidden_size": sizes["num_attention_heads"] * rng.choice([7, 20, 33])}


def rope(
    rng: random.Random, n_pairs: int, kinds: tuple[str, ...] = tuple(ROPE_TYPES)
) -> dict[str, Any]:
    """n_pairs: of the rotated part of a head."""
    theta = {"rope_theta": rng.choice([100.0, 10000.0, 1e6])}
    kind = rng.choice(kinds)
    scaled = {"rope_type": kind, "factor": rng.choice([1.5, 4.0]), **theta}
    original = {"original_max_position_embeddings": ORIGINAL}
    if kind == "default":
        return {"rope_type": kind, **theta}
    if kind == "llama3":
        return {**scaled, **original, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
    if kind == "yarn":
        odd = {"beta_fast": 8.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.2}
        return {**scaled, **original, **(odd if rng.random() < 0.5 else {})}
    if kind == "longrope":
        factors = [[round(rng.uniform(1, 5), 2) for _ in range(n_pairs)] for _ in range(2)]
        return {**scaled, **original, "short_factor": factors[0], "long_factor": factors[1]}
    return scaled


def with_rope(draw: Draw) -> Draw:
    def drawn(rng: random.Random) -> dict[str, Any]:
        sizes = draw(rng)
        return {**sizes, "rope_parameters": rope(rng, sizes["head_dim"] // 2)}

    return drawn


def phi3_sizes(rng: random.Random) -> dict[str, Any]:
    sizes = shape(rng)
    partial = rng.choice([0.5, 0.75, 1.0])
    parameters = rope(rng, int(sizes["head_dim"] * partial) // 2, ("default", "longrope"))
    return {
        **sizes,
        "rope_parameters": {**parameters, "partial_rotary_factor": partial},
        "original_max_position_embeddings": ORIGINAL,
        "sliding_window": rng.choice([None, 3, 11]),
    }


def layer_types(rng: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    kinds = ["full_attention", "sliding_attention"]
    return {"layer_types": [rng.choice(kinds) for _ in range(sizes["num_hidden_layers"])]}


def mixed_windows(rng: random.Random) -> dict[str, Any]:
    sizes = free_width(rng)
    return {**sizes, **layer_types(rng, sizes), "sliding_window": rng.choice([1, 2, 7, 30])}


def gemma_sizes(rng: random.Random) -> dict[str, Any]:
    caps = {"attn_logit_softcapping": rng.choice([None, 2.0, 40.0])}
    caps["final_logit_softcapping"] = rng.choice([None, 4.0])
    return {**mixed_windows(rng), **caps, "query_pre_attn_scalar": rng.choice([7, 64])}


def gemma3_sizes(rng: random.Random) -> dict[str, Any]:
    sizes = mixed_windows(rng)
    full = {"rope_type": "linear", "factor": 3.0, "rope_theta": 50000.0}
    sliding = {"rope_type": "default", "rope_theta": 300.0}
    return {**sizes, "rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


def granite_sizes(rng: random.Random) -> dict[str, Any]:
    names = ("embedding_multiplier", "logits_scaling", "residual_multiplier")
    scales = {name: rng.choice([0.25, 1.0, 2.5]) for name in names}
    return {**biased(rng), **scales, "attention_multiplier": rng.choice([0.05, 0.6])}


def biased(rng: random.Random) -> dict[str, Any]:
    flags = {name: rng.random() < 0.5 for name in ("attention_bias", "mlp_bias")}
    return {**with_rope(shape)(rng), **flags}


def glm4_sizes(rng: random.Random) -> dict[str, Any]:
    partial = rng.choice([0.25, 0.5, 1.0])
    parameters = {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": partial}
    return {**free_width(rng), "rope_parameters": parameters, "attention_bias": rng.random() < 0.5}


def qwen2_sizes(rng: random.Random) -> dict[str, Any]:
    sizes = with_rope(shape)(rng)
    if rng.random() < 0.5:
        return sizes
    window = {"use_sliding_window": True, "sliding_window": rng.choice([2, 9])}
    return {**sizes, **window, "max_window_layers": rng.choice([0, 1])}


def sparse(rng: random.Random) -> dict[str, Any]:
    """Widths are multiples of 8, without which transformers' grouped products do not run."""
    n_experts = rng.choice([3, 6])
    return {
        **with_rope(shape)(rng),
        "intermediate_size": rng.choice([24, 56]),
        "num_local_experts": n_experts,
        "num_experts": n_experts,
        "num_experts_per_tok": rng.choice([1, 2, 3]),
        "moe_intermediate_size": rng.choice([16, 40]),
        "shared_expert_intermediate_size": rng.choice([8, 56]),
        "norm_topk_prob": rng.random() < 0.5,
    }


FAMILIES: dict[str, tuple[Callable[..., PreTrainedModel], Draw]] = {
    "llama": (llama, biased),
    "mistral": (
        mistral,
        lambda rng: {**with_rope(free_width)(rng), "sliding_window": rng.choice([1, 4, 25, None])},
    ),
    "ministral": (ministral, mixed_windows),
    "mixtral": (mixtral, sparse),
    "qwen2": (qwen2, qwen2_sizes),
    "qwen2_moe": (qwen2_moe, sparse),
    "qwen3": (qwen3, with_rope(free_width)),
    "qwen3_moe": (qwen3_moe, sparse),
    "phi3": (phi3, phi3_sizes),
    "olmo2": (olmo2, with_rope(shape)),
    "granite": (granite, granite_sizes),
    "glm4": (glm4, glm4_sizes),
    "gemma2": (gemma2, gemma_sizes),
    "gemma3": (gemma3, gemma3_sizes),
}
PROMPTS = [
    list(range(3, 20)),
    [*range(3, 17), 40, 41],  # a prefix hit of the first
    [5],
    [77, 8, 8, 60, 31, 4, 19, 52, 80, 2, 11, 64, 33, 7, 70, 28, 9, 1, 45, 88, 16, 5, 21],
]
MODES: list[dict[str, Any]] = [
    {"kv_mode": "contiguous", "prefill_chunk": 4},
    {"kv_mode": "paged", "page_size": 4, "prefill_chunk": 7},
]


def made(name: str, seed: int) -> PreTrainedModel:
    make, draw = FAMILIES[name]
    return make(seed=seed, **draw(random.Random(f"{name} {seed}")))


def logits_before_each(reference: PreTrainedModel, ids: list[int], n_new: int) -> torch.Tensor:
    """[n_new, vocab_size]: what led to each of the last n_new ids."""
    first = len(ids) - n_new
    if reference.config.rope_parameters.get("rope_type") == "longrope":  # looks at the length
        return torch.stack(
            [reference_logits(reference, ids[:n])[-1] for n in range(first, len(ids))]
        )
    return reference_logits(reference, ids)[first - 1 : -1]


@pytest.mark.parametrize("seed", range(N_SEEDS))
@pytest.mark.parametrize("name", FAMILIES)
def test_any_shape_of_a_family_generates_what_transformers_does(
    name: str, seed: int, tmp_path: Path
) -> None:
    reference = made(name, seed)
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu", dtype="float32", progress=False)
    ids = PROMPTS[3] + PROMPTS[0]
    logits = loaded.model.forward(torch.tensor(ids), torch.arange(len(ids)), None)
    if reference.config.rope_parameters.get("rope_type") != "dynamic":
        expected = reference_logits(reference, ids)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
    for mode in MODES:
        with InferenceEngine(loaded.model, None, max_batch_size=3, **mode) as engine:
            texts = greedy_ids(engine, PROMPTS[:1], N_NEW) + greedy_ids(engine, PROMPTS[1:], N_NEW)
            if mode["kv_mode"] == "paged":
                assert engine.get_stats()["prefix_hit_tokens"] >= 12  # type: ignore[operator]
        for prompt, new_ids in zip(PROMPTS, texts, strict=True):
            before = logits_before_each(reference, prompt + new_ids, N_NEW)
            chosen = before.gather(1, torch.tensor(new_ids)[:, None])[:, 0]
            assert torch.all(chosen >= before.max(dim=1).values - TIE), (mode, prompt, new_ids)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_serves_in_bfloat16(name: str, tmp_path: Path) -> None:
    reference = made(name, 0)
    reference.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu", dtype="bfloat16", progress=False)
    ids = PROMPTS[0]
    logits = loaded.model.forward(torch.tensor(ids), torch.arange(len(ids)), None).float()
    expected = reference_logits(reference, ids)
    assert torch.corrcoef(torch.stack((logits.flatten(), expected.flatten())))[0, 1] > 0.98
    with InferenceEngine(loaded.model, None, max_batch_size=3, **MODES[1]) as engine:
        assert [len(text) for text in greedy_ids(engine, PROMPTS, N_NEW)] == [N_NEW] * len(PROMPTS)


def test_dynamic_scaling_takes_the_base_of_the_longest_text(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    reference = llama(max_position_embeddings=16, rope_parameters=scaling)
    reference.save_pretrained(tmp_path)
    ids = PROMPTS[3] + PROMPTS[0]  # 40 of 64 tokens
    loaded = load_model(
        tmp_path, device="cpu", dtype="float32", progress=False, max_seq_len=len(ids)
    )
    for text in (ids, ids[:15]):  # of 16 tokens transformers would keep the longer text's base
        logits = loaded.model.forward(torch.tensor(text), torch.arange(len(text)), None)
        torch.testing.assert_close(
            logits, reference_logits(reference, text), atol=TOLERANCE, rtol=TOLERANCE
        )
