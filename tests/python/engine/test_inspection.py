"""What the inspector is told: requests, pages, prefix tree and steps."""

from __future__ import annotations

import threading

import pytest
from toy_model import Collector, ToyModel, toy_engine

from astrai.engine import EngineStoppingError, GenerationRequest, InferenceEngine, Inspection
from astrai.sampling import SamplingParams

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def look_at(engine: InferenceEngine) -> Inspection:
    return engine.client.inspect().result(30)


class Gate:
    """Lets forwards through one by one."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)

    def __call__(self) -> None:
        self.steps.acquire(timeout=30)

    def release(self, n: int) -> None:
        self.steps.release(n)


def test_an_idle_engine_is_looked_at_without_a_step() -> None:
    with toy_engine(kv_mode="paged", page_size=4, kv_tokens=64) as engine:
        for _ in range(3):
            look = look_at(engine)
        assert (look.n_running, look.n_waiting, look.requests, look.steps) == (0, 0, [], [])
        assert (look.pages.total, look.pages.free, look.pages.page_size) == (16, 16, 4)
        assert engine.get_stats()["steps"] == 0


def test_running_and_waiting_requests_are_told_with_their_counts() -> None:
    gate = Gate()
    model = ToyModel()
    model.on_forward = gate
    with toy_engine(model, max_batch_size=1, kv_mode="paged", page_size=4, kv_tokens=64) as engine:
        sink = Collector()
        first, second = (
            engine.client.submit(GenerationRequest(PROMPT, greedy(n)), sink) for n in (10, 2)
        )
        asked = engine.client.inspect()
        gate.release(2)  # prefill and one decode, then the next forward waits
        sink.wait_events(2)
        asked.result(30)
        later = engine.client.inspect()  # answered now or after one more step
        gate.release(1)
        running = later.result(30)
        by_id = {view.request_id: view for view in running.requests}
        assert by_id[second].is_running is False and by_id[second].n_output == 0
        assert (by_id[second].n_prompt, by_id[second].max_tokens) == (9, 2)
        assert by_id[first].is_running and 1 <= by_id[first].n_output < 10
        assert by_id[first].n_written >= by_id[first].n_prefill == 9
        assert 0 < by_id[second].age_s <= by_id[first].age_s
        assert (running.n_running, running.n_waiting) == (1, 1)
        gate.release(10)
        sink.wait(2)


def test_steps_are_told_with_what_they_computed() -> None:
    with toy_engine(prefill_chunk=4) as engine:
        engine.generate(PROMPT, max_tokens=3, temperature=0.0, ignore_eos=True)
        steps = look_at(engine).steps
    computed = [(s.n_prefill_tokens, s.n_decode, s.n_sampled) for s in steps]
    assert computed == [(4, 0, 0), (4, 0, 0), (1, 0, 1), (0, 1, 1), (0, 1, 1)]
    assert [s.idx for s in steps] == [1, 2, 3, 4, 5]
    assert [len(s.ttft_s) for s in steps] == [0, 0, 1, 0, 0]
    assert [s.itl_s is not None for s in steps] == [False, False, False, True, True]
    assert all(s.duration_s > 0 for s in steps)
    assert steps == sorted(steps, key=lambda s: s.ended_at)


def test_the_prefix_tree_is_told_with_its_token_ids() -> None:
    with toy_engine(kv_mode="paged", page_size=4, kv_tokens=64) as engine:
        engine.generate(PROMPT, max_tokens=1, temperature=0.0)
        look = look_at(engine)
    (edge,) = look.edges
    assert edge["token_ids"] == PROMPT[:8] and edge["n_tokens"] == 8
    assert (edge["parent"], edge["ref_count"], look.n_edges) == (-1, 0, 1)
    assert (look.pages.cached, look.pages.held, look.pages.free) == (2, 0, 14)


def test_a_contiguous_pool_has_no_tree() -> None:
    with toy_engine() as engine:
        engine.generate(PROMPT, max_tokens=1)
        look = look_at(engine)
    assert look.edges == [] and look.n_edges == 0


def test_a_long_queue_is_told_in_part() -> None:
    gate = Gate()
    model = ToyModel()
    model.on_forward = gate
    with toy_engine(model, max_batch_size=1, max_queue=300) as engine:
        sink = Collector()
        for _ in range(200):
            engine.client.submit(GenerationRequest([1, 2], greedy(1)), sink)
        asked = engine.client.inspect()
        gate.release(200)
        look = asked.result(30)
        assert look.n_running + look.n_waiting > len(look.requests) == 64
        sink.wait(200)


def test_a_look_that_fails_is_the_asker_s_fault_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Inspection:
        raise ZeroDivisionError("on request")

    with toy_engine() as engine:
        monkeypatch.setattr("astrai.engine.scheduler.inspect_engine", fail)
        with pytest.raises(ZeroDivisionError):
            look_at(engine)
        assert len(engine.generate(PROMPT, max_tokens=2, ignore_eos=True)) > 0
        assert engine.client.is_healthy()


def test_no_look_hangs_on_an_engine_that_stops() -> None:
    engine = toy_engine()
    engine.shutdown()
    with pytest.raises(EngineStoppingError):
        engine.client.inspect()
