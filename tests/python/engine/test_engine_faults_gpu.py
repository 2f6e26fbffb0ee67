"""Faults of an engine on a GPU while steps are in flight: every caller hears of it, nobody waits,
and what can go on goes on. A NaN in one request's logits, and requests that are cancelled in
flight, are in `test_engine_gpu`."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from test_device_penalties import small_model
from test_engine_gpu import PROMPTS, Collector, engine_of, greedy, prompts_with, run_all

from astrai.engine import EngineDeadError, GenerationRequest, InferenceEngine
from astrai.engine.device_executor import DeviceExecutor
from astrai.engine.device_executor import LaunchedRows as Launched
from astrai.models import CausalLM

pytestmark = pytest.mark.gpu

KV_TOKENS = 500_000  # half a gigabyte


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return small_model()


def loaded_engine(model: CausalLM) -> tuple[InferenceEngine, Collector]:
    """With more requests than fit its batch, all of which go on for long, and steps in flight."""
    engine = engine_of(model, max_seq_len=4096, max_batch_size=8, kv_tokens=KV_TOKENS)
    sink = Collector()
    for request in prompts_with(greedy(3900)):
        engine.client.submit(request, sink)
    sink.wait_for(lambda: len({event.request_id for event in sink.events}) >= 8)
    return engine, sink


@pytest.mark.parametrize("fails_at", ["launch", "result"])
def test_a_step_without_memory_ends_every_request_and_the_next_engine_works(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    def fail(*_: object) -> None:
        torch.empty(1 << 46, dtype=torch.uint8, device="cuda")

    engine, sink = loaded_engine(model)
    with engine:
        monkeypatch.setattr(DeviceExecutor if fails_at == "launch" else Launched, fails_at, fail)
        sink.wait_for(lambda: len(sink.ends()) == len(PROMPTS))
        assert {event.finish_reason for event in sink.ends().values()} == {"error"}
        assert not engine.client.is_healthy()
        with pytest.raises(EngineDeadError):
            engine.client.submit(GenerationRequest([1]), sink)
    monkeypatch.undo()
    with engine_of(model, max_seq_len=512) as after:
        token_ids, _ = run_all(after, prompts_with(greedy(5)))
    assert [len(ids) for ids in token_ids] == [5] * len(PROMPTS)


def test_a_shutdown_under_load_ends_every_request_and_gives_the_memory_back(
    model: CausalLM,
) -> None:
    used_bytes = torch.cuda.memory_allocated()
    engine, sink = loaded_engine(model)
    began_at = time.perf_counter()
    engine.shutdown()
    assert time.perf_counter() - began_at < 10
    assert len(sink.ends()) == len(PROMPTS)
    assert {event.finish_reason for event in sink.ends().values()} == {"cancelled"}
    assert torch.cuda.memory_allocated() - used_bytes > 400 << 20
    del engine
    gc.collect()
    assert torch.cuda.memory_allocated() - used_bytes < 100 << 20  # libraries keep theirs
