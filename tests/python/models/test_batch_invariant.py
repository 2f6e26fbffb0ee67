"""The batch-invariant model on a CPU: a text's logits are the same to the bit, however its rows are
cut into steps and whatever shares the steps. Random weights of many families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai.kvcache import PagePool, rows_as_requests
from astrai.models import CausalLM
from astrai.models.batch_invariant import batch_invariant, variance_reason
from astrai.models.build import build_model
from astrai.models.config import ModelConfig
from astrai.models.experts_config import ExpertsConfig
from astrai.models.random_weights import RandomWeights

VOCAB_SIZE = 101
MAX_LEN = 96
TEXT = [(i * i + 5) % VOCAB_SIZE for i in range(70)]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"use_qk_norm": True},
    "gemma2": {
        "activation": "gelu_tanh",
        "embedding_scale": 7.0,
        "intermediate_size": 83,
        "attn_soft_cap": 50.0,
        "logit_soft_cap": 30.0,
    },
    "window": {"sliding_window": 9, "sliding_pattern": (True, False)},
    "experts": {
        "experts": ExpertsConfig(n_experts=6, n_active=2, intermediate_size=24, norm_topk_prob=True)
    },
}


def model_of(kind: str, dtype: torch.dtype = torch.float32, **options: Any) -> CausalLM:
    config = ModelConfig(
        **{
            "architecture": "llama",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 80,
            "n_layers": 2,
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 16,
            "intermediate_size": 96,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "max_position_embeddings": MAX_LEN,
            **KINDS[kind],
            **options,
        }
    )
    weights = RandomWeights(config, std=0.2)
    return build_model(config, weights, device=torch.device("cpu"), dtype=dtype, max_len=MAX_LEN)


def logits_of(
    model: CausalLM, chunks: Sequence[int], neighbours: Sequence[tuple[int, int]] = ()
) -> torch.Tensor:
    """Logits of TEXT, computed in steps of so many tokens. neighbours: (tokens that are there
    already, tokens in each step) of requests that run beside it."""
    config = model.config
    n_steps = len(chunks)
    pool = PagePool(
        config.n_layers,
        config.n_kv_heads,
        config.head_dim,
        1 + len(neighbours),
        MAX_LEN,
        "cpu",
        model.dtype,
        page_size=4,
        n_tokens=MAX_LEN * (1 + len(neighbours)),
        n_heads=config.n_heads,
    )
    own = pool.admit(TEXT).req_idx
    beside = []
    for i, (start, n) in enumerate(neighbours):
        ids = [(7 * i + j) % VOCAB_SIZE for j in range(min(start + n * n_steps, MAX_LEN - 1))]
        beside.append(pool.admit(ids, f"neighbour {i}").req_idx)
    found, begin = [], 0
    for step, n_own in enumerate(chunks):
        rows, starts, q_lens = [own], [begin], [n_own]
        for req_idx, (start, n) in zip(beside, neighbours, strict=True):
            at = 0 if step == 0 else start + n * (step - 1)
            q_len = start + n if step == 0 else n
            if at + q_len < MAX_LEN:
                rows, starts, q_lens = [*rows, req_idx], [*starts, at], [*q_lens, q_len]
        batch = pool.plan_step(rows, starts, q_lens, 0)
        logits = model.forward(batch.input_ids, batch.position_ids, batch.kv_cache, "prefill")
        found.append(logits[:n_own])
        begin += n_own
    return torch.cat(found)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> CausalLM:
    return batch_invariant(model_of(request.param))


@pytest.fixture(scope="module")
def alone(model: CausalLM) -> torch.Tensor:
    return logits_of(model, [len(TEXT)])


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_logits_depend_on_the_text_alone(
    model: CausalLM, alone: torch.Tensor, data: st.DataObject
) -> None:
    chunks = []
    while sum(chunks) < len(TEXT):
        most = len(TEXT) - sum(chunks)
        chunks.append(data.draw(st.one_of(st.just(1), st.integers(1, most)), label="chunk"))
    neighbours = data.draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=9), label="neighbours"
    )
    assert torch.equal(logits_of(model, chunks, neighbours), alone)


def test_bfloat16_is_invariant_too() -> None:
    model = batch_invariant(model_of("llama", torch.bfloat16))
    alone = logits_of(model, [len(TEXT)])
    assert torch.equal(logits_of(model, [1] * len(TEXT)), alone)
    assert torch.equal(logits_of(model, [33, 30, 7], [(3, 9), (0, 1)]), alone)


def test_the_usual_model_is_not_which_is_why_there_is_another_one() -> None:
    model = model_of("llama")
    assert not torch.equal(logits_of(model, [1] * len(TEXT)), logits_of(model, [len(TEXT)]))


def test_its_logits_are_those_of_the_usual_model_but_for_rounding(model: CausalLM) -> None:
    usual = CausalLM(
        model.config,
        model.embedding,
        model.layers,
        model.final_norm,
        model.lm_head,
        model.rotary,
        model.local_rotary,
    )
    torch.testing.assert_close(
        logits_of(model, [len(TEXT)]), logits_of(usual, [len(TEXT)]), atol=2e-4, rtol=1e-4
    )


def test_weights_are_shared_not_copied() -> None:
    usual = model_of("llama")
    pointers = [weight.data_ptr() for weight in usual.parameters()]
    assert [weight.data_ptr() for weight in batch_invariant(usual).parameters()] == pointers


@pytest.mark.parametrize(
    ("options", "dtype", "reason"),
    [
        ({"head_dim": 24}, torch.float32, "multiple of 16"),
        ({}, torch.float16, "float32 or bfloat16"),
    ],
)
def test_a_model_that_cannot_be_invariant_is_refused_with_the_reason(
    options: dict[str, Any], dtype: torch.dtype, reason: str
) -> None:
    model = model_of("llama", dtype, **options)
    assert reason in (variance_reason(model) or "")
    with pytest.raises(ValueError, match=reason):
        batch_invariant(model)


def test_rows_become_requests_with_one_token_more_each() -> None:
    pool = PagePool(1, 1, 16, 2, 32, "cpu", torch.float32, page_size=4, n_tokens=64, n_heads=1)
    first, second = pool.admit([1] * 9).req_idx, pool.admit([2] * 3).req_idx
    cache = pool.plan_step([first, second], [6, 0], [3, 2], 0).kv_cache
    rows = rows_as_requests(cache)
    assert rows.req_pool_indices.tolist() == [first] * 3 + [second] * 2
    assert rows.seq_lens_cpu == (7, 8, 9, 1, 2) and rows.seq_lens.tolist() == [7, 8, 9, 1, 2]
    assert rows.kv_indptr.tolist() == [0, 7, 15, 24, 25, 27]
    assert rows.out_cache_loc is cache.out_cache_loc and rows.n_decode == 5
