"""The engine on a GPU: graphs, overlap, sampling on the device and faults, with random weights.

The weights are so large that the best two logits are rarely close, but a product of other rows may
still round otherwise: texts are compared where the number of rows is the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from astrai.engine import GenerationRequest, InferenceEngine, TokenEvent
from astrai.engine.limits import RequestLimits
from astrai.extension.backend.cuda import CudaBackend
from astrai.models import CausalLM
from astrai.models.build import build_model
from astrai.models.config import ModelConfig
from astrai.models.experts_config import ExpertsConfig
from astrai.models.random_weights import RandomWeights
from astrai.sampling import SamplingParams, device_sampler
from device_sync import no_device_sync

pytestmark = pytest.mark.gpu

VOCAB_SIZE = 1000
EXPERTS = ExpertsConfig(16, 4, 128, norm_topk_prob=True)
FAULT_ID = 999  # its embedding is NaN
PROMPTS = [[(i * i + 13 * k) % 997 for i in range(3 + 11 * k)] for k in range(12)]


class Collector:
    """A sink that lets a test wait."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self._changed = threading.Condition()

    def __call__(self, events: list[TokenEvent]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout)

    def ends(self) -> dict[str, TokenEvent]:
        return {event.request_id: event for event in self.events if event.finish_reason}

    def token_ids(self, request_id: str) -> list[int]:
        events = [event for event in self.events if event.request_id == request_id]
        return [token_id for event in events for token_id in event.token_ids]


@pytest.fixture(scope="module", params=["llama", "qwen3", "qwen3_moe"])
def model(request: pytest.FixtureRequest) -> CausalLM:
    config = ModelConfig(
        architecture=request.param,
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        n_layers=3,
        n_heads=8,
        n_kv_heads=2,
        head_dim=64,
        intermediate_size=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        max_position_embeddings=1024,
        use_qk_norm=request.param != "llama",
        experts=EXPERTS if request.param == "qwen3_moe" else None,
    )
    weights = RandomWeights(config, std=0.08)
    made = build_model(
        config, weights, device=torch.device("cuda"), dtype=torch.bfloat16, max_len=1024
    )
    made.embedding[FAULT_ID] = float("nan")
    made.lm_head.weight.mul_(8)  # far between the logits, so that rounding rarely decides
    made.lm_head.weight[FAULT_ID] = 0  # nor is it ever drawn
    return made


def engine_of(model: CausalLM, **options: Any) -> InferenceEngine:
    integrity: list[Callable[[], None]] = []
    options = {
        "max_batch_size": 16,
        "kv_mode": "paged",
        "kv_tokens": 8192,
        "max_queue": 64,
    } | options
    engine = InferenceEngine(
        model, None, after_step=lambda: [check() for check in integrity] and None, **options
    )
    integrity.append(engine.cache.host.check_integrity)
    return engine


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def run_all(
    engine: InferenceEngine,
    requests: list[GenerationRequest],
    when_sent: Callable[[], None] = lambda: None,
) -> tuple[list[list[int]], list[TokenEvent]]:
    sink = Collector()
    ids = [engine.client.submit(request, sink) for request in requests]
    when_sent()
    sink.wait_for(lambda: len(sink.ends()) == len(ids))
    return [sink.token_ids(i) for i in ids], [sink.ends()[i] for i in ids]


def run_together(
    engine: InferenceEngine, requests: list[GenerationRequest]
) -> tuple[list[list[int]], list[TokenEvent]]:
    """`run_all`, where the loop meets all of them at once: their batches are those of every run."""
    is_held, is_sent = threading.Event(), threading.Event()

    def hold(_: list[TokenEvent]) -> None:
        is_held.set()
        is_sent.wait(60)

    engine.client.submit(GenerationRequest([1], greedy(1)), hold)
    assert is_held.wait(60)
    return run_all(engine, requests, is_sent.set)


def prompts_with(params: SamplingParams) -> list[GenerationRequest]:
    return [GenerationRequest(prompt, params) for prompt in PROMPTS]


CASES = {
    "greedy": greedy(40),
    "sampled": SamplingParams(seed=11, temperature=0.9, top_k=20, top_p=0.95, max_tokens=40),
    "sampled among all": SamplingParams(seed=11, top_k=0, max_tokens=40),
    "biased with logprobs": greedy(40, logit_bias={5: 2.0, 6: -100}, logprobs=3),
    "penalised": SamplingParams(
        seed=3, max_tokens=40, repetition_penalty=1.2, frequency_penalty=0.5, min_tokens=4
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_graphs_give_the_ids_of_eager_steps(model: CausalLM, case: str) -> None:
    found = []
    for enable_cuda_graph in (False, True):
        with engine_of(model, enable_cuda_graph=enable_cuda_graph) as engine:
            requests = prompts_with(CASES[case])
            for _ in range(2):  # the second time every graph is there, and a warm prefix cache
                token_ids, last = run_together(engine, requests)
                assert {event.finish_reason for event in last} == {"length"}
                found.append(token_ids)
    assert found[0] == found[2]  # the same chunks and batches, eager and captured
    assert found[1] == found[3]


class Recorder(CudaBackend):
    """A client's backend, which writes keys and values itself and might be part of a graph."""

    name = "recorder"
    reads_written_kv = False

    def __init__(self) -> None:
        self.calls: set[tuple[str, bool]] = set()

    def fwd_prefill(self, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> torch.Tensor:
        self.calls.add(("prefill", k is not None and v is not None))
        return super().fwd_prefill(q, k, v, *rest, **options)

    def fwd_decode(self, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> torch.Tensor:
        self.calls.add(("decode", k is not None and v is not None))
        return super().fwd_decode(q, k, v, *rest, **options)


def test_the_backend_of_a_client_attends_its_requests_and_gets_keys_and_values(
    model: CausalLM,
) -> None:
    with engine_of(model) as engine:
        run_all(engine, prompts_with(greedy(20)))  # the graphs of automatic choice are there
        with Recorder() as recorder:
            token_ids, last = run_all(engine, prompts_with(greedy(20)))
    assert recorder.calls == {("prefill", True), ("decode", True)}
    assert {event.finish_reason for event in last} == {"length"}
    assert all(len(ids) == 20 for ids in token_ids)


def test_a_request_alone_draws_what_torch_draws(model: CausalLM) -> None:
    """One row by the engine against one forward over the whole text after each token."""
    with engine_of(model, max_batch_size=1) as engine:
        (token_ids,), _ = run_all(engine, [GenerationRequest(PROMPTS[5], greedy(30))])
    n_off = 0
    with torch.inference_mode():
        ids = torch.tensor(PROMPTS[5] + token_ids[:-1], device="cuda")
        positions = torch.arange(len(ids), device="cuda")
        logits = model.forward(ids, positions, None)[len(PROMPTS[5]) - 1 :].float()
    best = logits.topk(2).values
    for token_id, expected, (first, second) in zip(
        token_ids, logits.argmax(-1).tolist(), best.tolist(), strict=True
    ):
        if token_id != expected:
            n_off += 1
            assert first - second < (0.3 if model.config.experts is None else 1.5)
    assert n_off <= 2  # rounded router logits may choose another expert, which changes more


def test_seeded_requests_repeat_themselves(model: CausalLM) -> None:
    with engine_of(model, max_batch_size=1) as engine:
        request = GenerationRequest(PROMPTS[3], CASES["sampled"])
        texts = [run_all(engine, [request])[0] for _ in range(3)]
    assert texts[1] == texts[2]  # the first had a cold prefix cache, hence other products


def test_logprobs_come_one_for_each_token(model: CausalLM) -> None:
    with engine_of(model) as engine:
        sink = Collector()
        request = GenerationRequest(PROMPTS[2], greedy(20, logprobs=4))
        engine.client.submit(request, sink)
        sink.wait_for(lambda: len(sink.ends()) == 1)
    for event in sink.events:
        assert event.logprobs is not None
        assert [entry.token_id for entry in event.logprobs] == event.token_ids
        for entry in event.logprobs:
            assert len(entry.top) == 4 and entry.top[0] == (entry.token_id, entry.logprob)


def test_the_steady_state_never_waits_for_the_device(model: CausalLM) -> None:
    """Everything that waits, other than for the event of the last step's ids, would raise."""
    with engine_of(model) as engine:
        for params in (CASES["greedy"], CASES["sampled among all"], CASES["penalised"]):
            run_all(engine, prompts_with(params))  # graphs and allocations are there
        sink = Collector()
        penalised = greedy(300, repetition_penalty=1.2, min_tokens=250)
        requests = prompts_with(greedy(600))[:6] + prompts_with(penalised)[:5]
        requests += prompts_with(SamplingParams(seed=1, top_k=0, max_tokens=300))
        with no_device_sync():
            ids = [engine.client.submit(request, sink) for request in requests[:16]]
            sink.wait_for(lambda: len(sink.ends()) == len(ids))
    assert {event.finish_reason for event in sink.ends().values()} == {"length"}


def test_a_fault_in_one_request_ends_it_alone(model: CausalLM) -> None:
    with engine_of(model) as engine:
        requests = prompts_with(greedy(20))
        requests[4] = GenerationRequest([3, FAULT_ID, 7], greedy(20))
        token_ids, last = run_all(engine, requests)
        again, _ = run_all(engine, [GenerationRequest([3, 4, 5], greedy(3))])
    reasons = [event.finish_reason for event in last]
    assert reasons.pop(4) == "error" and set(reasons) == {"length"}
    assert all(len(ids) == 20 for i, ids in enumerate(token_ids) if i != 4)
    assert len(again[0]) == 3


def test_stop_ids_that_are_given_twice_are_masked_and_then_end_the_text(model: CausalLM) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=30,
        min_tokens=20,
        stop_token_ids=(7, 7, 5),
        logit_bias={5: 100, 7: 99},  # drawn as soon as they may be
    )
    with engine_of(model, end_ids=(5,)) as engine:
        requests = prompts_with(params) + prompts_with(replace(params, repetition_penalty=1.1))
        token_ids, last = run_all(engine, requests)
    assert {event.finish_reason for event in last} == {"stop"}
    assert all(len(ids) == 21 and {5, 7}.isdisjoint(ids[:20]) for ids in token_ids)


def test_edits_that_cannot_be_made_ready_end_their_request_alone(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_sampler, "edit_capacity", lambda *_: 16)
    monkeypatch.setattr(RequestLimits, "_check_edits", lambda *_: None)
    with engine_of(model) as engine:
        requests = prompts_with(greedy(20, logit_bias={5: 2.0}))
        requests[4] = GenerationRequest(PROMPTS[4], greedy(20, repetition_penalty=1.1))
        token_ids, last = run_all(engine, requests)
        assert engine.client.is_healthy()
    failed = last.pop(4)
    assert failed.finish_reason == "error" and "a list holds 16" in (failed.error or "")
    assert {event.finish_reason for event in last} == {"length"}
    assert all(len(ids) == 20 for i, ids in enumerate(token_ids) if i != 4)


def test_stops_cancels_and_a_tight_pool_leave_no_page_behind(model: CausalLM) -> None:
    with engine_of(model, kv_tokens=1200, page_size=4, prefill_chunk=64) as engine:
        free_ids, _ = run_all(engine, prompts_with(greedy(60)))
        sink = Collector()
        ids = []
        for i, prompt in enumerate(PROMPTS * 3):
            stops = (free_ids[i % 12][30],) if i % 3 == 0 else ()
            ids.append(
                engine.client.submit(
                    GenerationRequest(prompt, greedy(100, stop_token_ids=stops)), sink
                )
            )
        sink.wait_for(lambda: len(sink.ends()) >= 3)
        for request_id in ids[1::3]:
            engine.client.cancel(request_id)
        sink.wait_for(lambda: len(sink.ends()) == len(ids))
        reasons = {sink.ends()[i].finish_reason for i in ids}
        stats = engine.get_stats()
        pages = stats["kv_pages"]
        while pages["held"]:  # type: ignore[index]  # the last rows go back after their event
            time.sleep(0.01)
            pages = engine.get_stats()["kv_pages"]
    assert reasons <= {"stop", "length", "cancelled"} and "length" in reasons
    assert stats["preemptions"] > 0  # type: ignore[operator]


def test_the_ledger_agrees_with_the_driver_and_nothing_grows_after_the_start(
    model: CausalLM,
) -> None:
    def used_bytes() -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free

    torch.cuda.empty_cache()
    with engine_of(model, kv_tokens=300_000, max_batch_size=32) as engine:
        ledger = engine.ledger
        assert ledger is not None
        promised = ledger.in_use + sum(ledger.parts.values()) - ledger.weights
        for params in CASES.values():
            run_all(engine, prompts_with(params))
        after_first_load = used_bytes()
        for _ in range(3):
            for params in CASES.values():
                run_all(engine, prompts_with(params))
        assert used_bytes() - after_first_load <= 4 << 20
        assert abs(used_bytes() - promised) < 256 << 20
