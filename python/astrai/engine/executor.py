"""The effects of a step where they are done as they are called: one forward and one draw for each
group of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from astrai.engine.engine_task import EngineTask
from astrai.engine.plan import StepGroup
from astrai.extension import use_selection
from astrai.sampling import SampledRows, Sampler

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache, PagePool

__all__ = ["DoneStep", "ForwardModel", "StepExecutor"]


class ForwardModel(Protocol):
    """The part of `CausalLM` that a step calls."""

    def forward(
        self,
        input_ids: Tensor,  # [total_q] int64
        position_ids: Tensor,  # [total_q] int64
        kv_cache: KVCache,
        fwd: Literal["prefill", "decode"],
        logits_indices: Tensor | None = None,  # [n] int64 packed rows to compute logits for
    ) -> Tensor: ...  # [n, vocab]


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step that is over when it is launched."""

    rows: SampledRows

    def wait(self) -> None:
        pass

    def result(self) -> SampledRows:
        return self.rows


class StepExecutor:
    """Runs groups on the model. Called by the scheduler's thread alone, in inference mode."""

    runs_ahead = False
    padded_sizes = ()
    query_tile = 1

    def __init__(self, model: ForwardModel, pool: PagePool, sampler: Sampler) -> None:
        self._model = model
        self._pool = pool
        self._sampler = sampler

    def launch(self, group: StepGroup[EngineTask], slots: list[int]) -> DoneStep:
        """Forward the group, then draw for its first n_sampled tasks, whose sampler slots these
        are. The group's KV slots are written when this returns; raises what the model raises."""
        batch = self._pool.plan_step(
            group.req_indices, group.starts, group.q_lens, group.n_decode, group.rope_offsets
        )
        indices = batch.logits_indices
        if 0 < group.n_sampled < len(group.tasks):
            indices = indices[: group.n_sampled]
        fwd: Literal["prefill", "decode"] = "decode" if batch.is_decode else "prefill"
        with use_selection(group.selection):
            logits = self._model.forward(
                batch.input_ids, batch.position_ids, batch.kv_cache, fwd, indices
            )
        if group.n_sampled == 0:
            return DoneStep(SampledRows([], frozenset(), None))
        return DoneStep(self._sampler.sample(logits, slots))
