"""The engine with batch_invariant: ids and log-probabilities are equal to the bit, however the
requests share batches, chunks, pages and the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ahead_executor import run_engines_ahead
from toy_model import Collector

from astrai.engine import GenerationRequest, InferenceEngine
from astrai.models import LoadedModel, load_model
from astrai.sampling import SamplingParams

# kv_tokens 64 is less than three of the requests need together.
MODES: dict[str, dict[str, Any]] = {
    "contiguous": {"max_batch_size": 8},
    "chunks of 5": {"kv_mode": "paged", "max_batch_size": 8, "prefill_chunk": 5},
    "chunks of 64": {"kv_mode": "paged", "max_batch_size": 8, "prefill_chunk": 64},
    "unlimited": {"kv_mode": "paged", "max_batch_size": 3, "prefill_chunk": None},
    "tight": {"kv_mode": "paged", "max_batch_size": 8, "page_size": 4, "kv_tokens": 64},
}
Told = list[tuple[list[int], list[Any]]]  # of each request: ids, log-probabilities


@pytest.fixture(scope="module", params=["llama_tied", "qwen3_moe"])
def loaded(request: pytest.FixtureRequest, goldens: Path) -> LoadedModel:
    folder = goldens / "tiny" / request.param
    return load_model(folder, device="cpu", dtype="float32", progress=False)


def requests_of(loaded: LoadedModel) -> list[GenerationRequest]:
    """Prompts with common beginnings; greedy and seeded draws, some with penalties."""
    vocab_size = loaded.config.vocab_size
    base = [(i * i + 3) % vocab_size for i in range(24)]
    found = []
    for i in range(7):
        prompt = base[: 4 * i] + [(5 * i + j) % vocab_size for j in range(1 + i % 3)]
        greedy = {"temperature": 0.0} if i % 2 else {"temperature": 1.0, "seed": i, "top_k": 0}
        penalty = 1.2 if i % 3 == 2 else 1.0
        params = SamplingParams(
            max_tokens=12 + 2 * i,
            ignore_eos=True,
            logprobs=20,
            repetition_penalty=penalty,
            **greedy,  # type: ignore[arg-type]  # floats and integers by name
        )
        found.append(GenerationRequest(prompt, params, every_token=True))
    return found


def engine_of(loaded: LoadedModel, **options: Any) -> InferenceEngine:
    integrity: list[Any] = []
    engine = InferenceEngine(
        loaded.model,
        loaded.tokenizer,
        max_seq_len=64,
        batch_invariant=True,
        after_step=lambda: [check() for check in integrity] and None,
        **options,
    )
    integrity.append(engine.cache.host.check_integrity)
    return engine


def told_by(engine: InferenceEngine, requests: list[GenerationRequest]) -> Told:
    sink = Collector()
    ids = [engine.client.submit(request, sink) for request in requests]
    sink.wait(len(requests), timeout=120)
    logprobs = {
        request_id: [
            entry
            for event in sink.events
            if event.request_id == request_id
            for entry in event.logprobs or []
        ]
        for request_id in ids
    }
    return [(sink.token_ids(request_id), logprobs[request_id]) for request_id in ids]


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> Told:
    """Each by an engine that has never seen another."""
    found: Told = []
    for request in requests_of(loaded):
        with engine_of(loaded) as engine:
            found += told_by(engine, [request])
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_request_is_told_the_same_bits_in_any_company(
    loaded: LoadedModel, alone: Told, mode: str, is_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_ahead:
        run_engines_ahead(monkeypatch)
    requests = requests_of(loaded)
    with engine_of(loaded, **MODES[mode]) as engine:
        assert told_by(engine, requests) == alone  # with a cold prefix cache
        assert told_by(engine, requests[::-1]) == alone[::-1]  # and with a warm one
        stats = engine.get_stats()
    if mode == "tight":
        assert stats["preemptions"] > 0  # type: ignore[operator]
    elif "kv_mode" in MODES[mode]:
        assert stats["prefix_hit_tokens"] > 0  # type: ignore[operator]


@pytest.mark.model
def test_the_default_model_tells_the_same_bits_alone_and_sent_back(
    default_model: LoadedModel,
) -> None:
    requests = requests_of(default_model)[1:5]
    with engine_of(default_model, max_batch_size=1) as engine:
        one_by_one = told_by(engine, requests)
    with engine_of(default_model, **MODES["tight"]) as engine:
        assert told_by(engine, requests) == one_by_one
        assert engine.get_stats()["preemptions"] > 0  # type: ignore[operator]


def test_the_text_of_an_answer_does_not_come_back_as_another_one(loaded: LoadedModel) -> None:
    """A prompt that goes on where an answer ended takes no page of it."""
    first = requests_of(loaded)[3]
    more = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=20)
    found = []
    for has_history in (False, True):
        with engine_of(loaded, kv_mode="paged", page_size=2) as engine:
            if has_history:
                told_by(engine, [first])
            else:
                with engine_of(loaded) as other:
                    ids = told_by(other, [first])[0][0]
            prompt = [*first.prompt_ids, *ids]
            found += told_by(engine, [GenerationRequest(prompt, more, every_token=True)])
    assert found[0] == found[1]


def test_without_the_option_the_bits_do_depend_on_the_company(loaded: LoadedModel) -> None:
    """What the other tests would miss otherwise."""
    requests = requests_of(loaded)
    found = []
    for options in ({"max_batch_size": 8}, {"max_batch_size": 8, "prefill_chunk": 5}):
        with InferenceEngine(loaded.model, loaded.tokenizer, max_seq_len=64, **options) as engine:
            found.append(told_by(engine, requests))
    assert found[0] != found[1]


def test_a_model_that_cannot_be_invariant_is_refused_at_the_start(loaded: LoadedModel) -> None:
    half = load_model(loaded.source, device="cpu", dtype="float16", progress=False)
    assert half.dtype == torch.float16
    with pytest.raises(ValueError, match=r"batch_invariant does not work with torch\.float16"):
        engine_of(half)
