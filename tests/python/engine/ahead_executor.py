"""An executor that runs ahead as the one of a GPU does, on the CPU and without its speed.

A group is computed when it is launched, from ids that the pretended device holds, and its draw is
told only when it is asked for. So the engine's loop, its events and its faults can be tested under
the overlap of steps with no GPU.
"""

from __future__ import annotations

from collections import deque

import pytest
import torch

from astrai.engine import engine as engine_module
from astrai.engine.engine_task import EngineTask
from astrai.engine.executor import ForwardModel
from astrai.engine.plan import StepGroup
from astrai.extension import use_selection
from astrai.kvcache import PagePool
from astrai.sampling import SampledRows, Sampler


class LateStep:
    """A step whose draw is read later, in the order of launches and once."""

    def __init__(self, executor: AheadExecutor, rows: SampledRows) -> None:
        self._executor, self._rows = executor, rows
        executor.in_flight.append(self)

    def wait(self) -> None:
        pass

    def result(self) -> SampledRows:
        assert self._executor.in_flight.popleft() is self
        if self._executor.fault is not None:
            raise self._executor.fault
        return self._rows


class AheadExecutor:
    runs_ahead = True
    padded_sizes = ()
    query_tile = 1

    def __init__(self, model: ForwardModel, pool: PagePool, sampler: Sampler) -> None:
        self._model, self._pool, self._sampler = model, pool, sampler
        self._last_ids = torch.full((pool.host.max_batch_size,), -1)
        self.in_flight: deque[LateStep] = deque()
        self.most_in_flight = 0
        self.fault: Exception | None = None  # what the device meets in every step from now on

    def launch(self, group: StepGroup[EngineTask], slots: list[int]) -> LateStep:
        batch = self._pool.plan_step(group.req_indices, group.starts, group.q_lens, group.n_decode)
        n_drawn = 0 if group.is_replay else group.n_decode  # rows whose ids the device has drawn
        decoding = group.req_indices[:n_drawn]
        known = batch.input_ids[:n_drawn]
        drawn = self._last_ids[decoding]
        assert ((known == drawn) | (known == -1)).all()
        batch.input_ids[:n_drawn] = drawn
        assert (batch.input_ids >= 0).all(), "a token is computed that nobody has drawn"
        rows = SampledRows([], frozenset(), None)
        with use_selection(group.selection):
            logits = self._model.forward(
                batch.input_ids,
                batch.position_ids,
                batch.kv_cache,
                "decode" if batch.is_decode else "prefill",
                batch.logits_indices[: max(group.n_sampled, 1)],
            )
        if group.n_sampled:
            rows = self._sampler.sample(logits[: group.n_sampled], slots)
            sampled = group.req_indices[: group.n_sampled]
            self._last_ids[sampled] = torch.tensor(rows.token_ids)
        step = LateStep(self, rows)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        return step


def run_engines_ahead(monkeypatch: pytest.MonkeyPatch) -> list[AheadExecutor]:
    """Engines made from here on run ahead. Returns their executors as they are made."""
    made: list[AheadExecutor] = []

    def executor_for(
        model: ForwardModel, pool: PagePool, enable_cuda_graph: bool, prefill_chunk: int | None
    ) -> tuple[AheadExecutor, Sampler]:
        sampler = Sampler(model.config.vocab_size)  # type: ignore[attr-defined]  # a CausalLM
        made.append(AheadExecutor(model, pool, sampler))
        return made[-1], sampler

    monkeypatch.setattr(engine_module, "executor_for", executor_for)
    return made
