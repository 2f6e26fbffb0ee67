"""What the engine draws on a GPU, one step ahead of the host, against what the CPU's sampler draws
from the same logits: penalties, bias, min_tokens and seeds through preemption, ends and company."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from test_engine_gpu import PROMPTS, VOCAB_SIZE, engine_of, greedy, run_all

from astrai.engine import GenerationRequest, executor_choice
from astrai.engine.device_executor import DeviceExecutor
from astrai.kvcache import HostStaging
from astrai.models import CausalLM
from astrai.models.build import build_model
from astrai.models.config import ModelConfig
from astrai.models.random_weights import RandomWeights
from astrai.sampling import Sampler, SamplingParams
from astrai.sampling.device_sampler import DeviceSampler, RowDraw, RowMasks, RowParams, RowPlan
from astrai.structured import CompiledGrammar

pytestmark = pytest.mark.gpu

MODES: dict[str, dict[str, Any]] = {
    "roomy": {},
    "tight": {"kv_tokens": 700, "page_size": 4, "prefill_chunk": 64},
    "one by one": {"max_batch_size": 1},
}


class ComparedSampler(DeviceSampler):
    """Keeps the logits of every draw, and gives the CPU's sampler the same requests."""

    made: ClassVar[list[ComparedSampler]] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.on_host = Sampler(VOCAB_SIZE)
        self.draws: list[tuple[list[int], torch.Tensor, torch.Tensor]] = []
        self._host_slots: dict[int, int] = {}
        self._planned: list[int] = []
        self.made.append(self)

    def add(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        end_ids: Iterable[int] = (),
        grammar: CompiledGrammar | None = None,
    ) -> int:
        slot = super().add(params, prompt_ids, end_ids, grammar)
        self._host_slots[slot] = self.on_host.add(params, prompt_ids, end_ids)
        return slot

    def plan(
        self,
        slots: Sequence[int],
        pool_rows: Sequence[int],
        words: npt.NDArray[np.int32],
        n_padded: int | None = None,
        staging: HostStaging | None = None,
    ) -> RowPlan:
        self._planned = [self._host_slots[slot] for slot in slots]
        return super().plan(slots, pool_rows, words, n_padded, staging)

    def draw(
        self,
        logits: torch.Tensor,
        params: RowParams,
        out: RowDraw,
        has_wide_rows: bool,
        masks: RowMasks | None = None,
    ) -> None:
        super().draw(logits, params, out, has_wide_rows, masks)
        n = len(self._planned)
        self.draws.append((self._planned, logits[:n].clone(), out.token_ids[:n].clone()))

    def assert_as_on_the_host(self) -> None:
        for slots, logits, token_ids in self.draws:
            if slots:
                assert self.on_host.sample(logits.cpu(), slots).token_ids == token_ids.tolist()


def small_model() -> CausalLM:
    """Of few heads, so that it falls into loops, which penalties break."""
    config = ModelConfig(
        architecture="llama",
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        intermediate_size=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        max_position_embeddings=4096,
    )
    weights = RandomWeights(config, std=0.08)
    return build_model(
        config, weights, device=torch.device("cuda"), dtype=torch.bfloat16, max_len=4096
    )


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return small_model()


def requests_of(stops: Sequence[int] = ()) -> list[GenerationRequest]:
    """Every kind of edit, in one batch with requests that have none; some end at a stop id."""
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.8, "temperature": 0.7, "seed": 5},
        {},
        {"presence_penalty": -0.5, "frequency_penalty": 0.3, "top_k": 0, "seed": 7},
        {"logit_bias": {3: 5.0, 9: -100}, "min_tokens": 6},
        {"repetition_penalty": 0.8, "presence_penalty": 1.5, "min_tokens": 12},
    ]
    found = []
    for i in range(24):
        options = {"temperature": 0, "max_tokens": 20 + 3 * i} | kinds[i % 6]
        stop_ids = tuple(stops) if i % 4 == 1 else ()
        params = SamplingParams(ignore_eos=True, stop_token_ids=stop_ids, **options)
        found.append(GenerationRequest(PROMPTS[i % 12], params))
    return found


@pytest.mark.parametrize("is_ahead", [True, False], ids=["ahead", "step by step"])
@pytest.mark.parametrize("mode", MODES)
def test_every_draw_of_the_engine_is_that_of_the_cpu(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch, mode: str, is_ahead: bool
) -> None:
    monkeypatch.setattr(DeviceExecutor, "runs_ahead", is_ahead)
    monkeypatch.setattr(executor_choice, "DeviceSampler", ComparedSampler)
    options = {"max_seq_len": 512, "enable_cuda_graph": False} | MODES[mode]
    with engine_of(model, **options) as engine:
        found, _ = run_all(engine, requests_of())
        stops = [ids[10] for ids in found[1::4]]  # most requests that have them end unforeseen
        _, last = run_all(engine, requests_of(stops))
        stats = engine.get_stats()
    sampler = ComparedSampler.made.pop()
    sampler.assert_as_on_the_host()
    assert sum(event.finish_reason == "stop" for event in last) >= 3
    if mode == "tight":
        assert stats["preemptions"] > 0  # type: ignore[operator]
    if is_ahead:  # a request that ends unforeseen has been drawn for once more
        n_drawn = sum(len(slots) for slots, _, _ in sampler.draws)
        assert n_drawn > stats["total_tokens"]  # type: ignore[operator]


def test_penalised_requests_take_part_in_every_step(model: CausalLM) -> None:
    """As many steps as tokens, and a few for the prompts: none waits for what it has drawn."""
    with engine_of(model, max_seq_len=512) as engine:
        params = [greedy(200), greedy(200, repetition_penalty=1.2, presence_penalty=0.5)]
        requests = [GenerationRequest(PROMPTS[i], params[i % 2]) for i in range(12)]
        run_all(engine, requests)
        n_steps = engine.get_stats()["steps"]
    assert n_steps < 220  # type: ignore[operator]
