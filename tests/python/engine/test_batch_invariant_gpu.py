"""The engine with batch_invariant on a GPU: ids and log-probabilities of a request are equal to the
bit alone and in company, whatever the chunks, the cache, the pool, graphs and overlap do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from astrai.engine import GenerationRequest, InferenceEngine, TokenEvent
from astrai.engine.device_executor import DeviceExecutor
from astrai.models import CausalLM
from astrai.models.batch_invariant import batch_invariant
from astrai.models.build import build_model
from astrai.models.config import ModelConfig
from astrai.models.experts_config import ExpertsConfig
from astrai.models.random_weights import RandomWeights
from astrai.sampling import SamplingParams

pytestmark = pytest.mark.gpu

VOCAB_SIZE = 2000
N_REQUESTS = 256
# SmolLM2's and Qwen3's widths; the second has a product whose sums a library likes to split.
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2": {"hidden_size": 576, "n_heads": 9, "n_kv_heads": 3, "intermediate_size": 1536},
    "qwen3": {
        "hidden_size": 1024,
        "n_heads": 16,
        "n_kv_heads": 8,
        "intermediate_size": 3072,
        "use_qk_norm": True,
        "head_dim": 128,
    },
}
MODES: dict[str, dict[str, Any]] = {
    "chunks of 64": {"prefill_chunk": 64},
    "chunks of 512": {"prefill_chunk": 512},
    "unlimited": {"prefill_chunk": None},
    "eager": {"enable_cuda_graph": False},
    "tight": {"kv_tokens": 4000, "page_size": 4, "prefill_chunk": 512},
}


class Collector:
    """Keeps what the requests are told, by request."""

    def __init__(self) -> None:
        self.events: dict[str, list[TokenEvent]] = {}
        self._n_ended = 0
        self._changed = threading.Condition()

    def __call__(self, events: list[TokenEvent]) -> None:
        with self._changed:
            for event in events:
                self.events.setdefault(event.request_id, []).append(event)
                self._n_ended += event.finish_reason is not None
            self._changed.notify_all()

    def wait(self, n: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._n_ended >= n, 100)

    def told(self, request_id: str) -> tuple[list[int], list[Any]]:
        events = self.events[request_id]
        return (
            [token_id for event in events for token_id in event.token_ids],
            [entry for event in events for entry in event.logprobs or []],
        )


def config_of(**options: Any) -> ModelConfig:
    return ModelConfig(
        **{
            "architecture": "llama",
            "vocab_size": VOCAB_SIZE,
            "n_layers": 2,
            "head_dim": 64,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "max_position_embeddings": 1024,
            **options,
        }
    )


def model_of(config: ModelConfig) -> CausalLM:
    return build_model(
        config,
        RandomWeights(config, std=0.05),
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        max_len=1024,
    )


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest) -> CausalLM:
    return model_of(config_of(**SHAPES[request.param]))


def requests_of() -> list[GenerationRequest]:
    """Of 1 to 300 tokens, with common beginnings; greedy and seeded, some with log-probabilities,
    so that all rows of the logits that matter are looked at, and some with penalties."""
    base = [(i * i + 3) % VOCAB_SIZE for i in range(290)]
    found = []
    for i in range(N_REQUESTS):
        prompt = base[: 37 * (i % 8)] + [(31 * i + j) % VOCAB_SIZE for j in range(1 + i % 7)]
        draw: dict[str, Any] = {"temperature": 0} if i % 4 else {"seed": i, "top_k": 0}
        if i % 5 == 1:
            draw |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": i % 9}
        params = SamplingParams(
            max_tokens=8 + 3 * (i % 17), ignore_eos=True, logprobs=20 if i % 2 else None, **draw
        )
        found.append(GenerationRequest(prompt, params, every_token=True))
    return found


def engine_of(model: CausalLM, **options: Any) -> InferenceEngine:
    integrity: list[Any] = []
    options = {
        "max_batch_size": N_REQUESTS,
        "kv_mode": "paged",
        "kv_tokens": 120_000,
        "max_queue": N_REQUESTS,
        "max_seq_len": 512,
    } | options
    engine = InferenceEngine(
        model,
        None,
        batch_invariant=True,
        after_step=lambda: [check() for check in integrity] and None,
        **options,
    )
    integrity.append(engine.cache.host.check_integrity)
    return engine


def told_by(engine: InferenceEngine, requests: list[GenerationRequest]) -> list[Any]:
    sink = Collector()
    ids = [engine.client.submit(request, sink) for request in requests]
    sink.wait(len(ids))
    return [sink.told(request_id) for request_id in ids]


@pytest.fixture(scope="module")
def alone(model: CausalLM) -> dict[int, Any]:
    """One after the other, without a cache of prefixes."""
    requests = requests_of()
    with engine_of(model, max_batch_size=1, page_size=1) as engine:
        return {i: told_by(engine, [requests[i]])[0] for i in range(0, N_REQUESTS, 3)}


def assert_same(told: list[Any], alone: dict[int, Any]) -> None:
    different = [i for i, expected in alone.items() if told[i] != expected]
    assert different == []


@pytest.mark.parametrize("mode", MODES)
def test_a_request_is_told_the_same_bits_among_256(
    model: CausalLM, alone: dict[int, Any], mode: str
) -> None:
    requests = requests_of()
    with engine_of(model, **MODES[mode]) as engine:
        assert_same(told_by(engine, requests), alone)
        assert_same(told_by(engine, requests[::-1])[::-1], alone)  # with a warm prefix cache
        stats = engine.get_stats()
    assert stats["prefix_hit_tokens"] > 0  # type: ignore[operator]
    if mode == "tight":
        assert stats["preemptions"] > 0  # type: ignore[operator]


def test_steps_one_after_the_other_tell_the_same_bits(
    model: CausalLM, alone: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceExecutor, "runs_ahead", False)
    with engine_of(model) as engine:
        assert_same(told_by(engine, requests_of()), alone)


def test_a_failing_neighbour_changes_no_bit(model: CausalLM, alone: dict[int, Any]) -> None:
    row = model.embedding[VOCAB_SIZE - 1].clone()
    model.embedding[VOCAB_SIZE - 1] = float("nan")
    try:
        requests = requests_of()
        for i in range(1, N_REQUESTS, 3):
            requests[i] = GenerationRequest([VOCAB_SIZE - 1, 5], requests[i].params)
        with engine_of(model) as engine:
            told = told_by(engine, requests)
    finally:
        model.embedding[VOCAB_SIZE - 1] = row
    sound = {
        i: told
        for i, told in alone.items()
        if VOCAB_SIZE - 1 not in [*requests[i].prompt_ids, *told[0]]
    }
    assert len(sound) > 40
    assert_same(told, sound)


def test_what_cannot_be_invariant_is_refused_with_the_reason() -> None:
    experts = ExpertsConfig(4, 2, 64, True)
    shape = {"hidden_size": 128, "n_heads": 2, "n_kv_heads": 2, "intermediate_size": 128}
    with pytest.raises(ValueError, match="experts on a GPU"):
        batch_invariant(model_of(config_of(experts=experts, **shape)))
    with pytest.raises(ValueError, match="backend 'torch_native'"):
        engine_of(model_of(config_of(**shape)), backend="torch_native")
