"""The effects of a step on a GPU, launched without waiting: ids stay on the device.

A step of decoding tasks alone runs at fixed addresses (`DecodeRunner`); of one with chunks of
prompts, unless it is very large, the parts between the attentions do (`PromptRunner`). Either way a
token that an earlier step draws is read on the device, and the host gets the ids by a copy that it
waits for one step later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from astrai.engine.decode_runner import DecodeRunner, graph_sizes, padded_rows
from astrai.engine.engine_task import EngineTask
from astrai.engine.plan import StepGroup
from astrai.engine.prompt_runner import PromptRunner, prompt_sizes
from astrai.extension import Selection, use_selection
from astrai.extension.backend.base import AttentionCall
from astrai.extension.backend.selection import backend_for
from astrai.extension.ops import KernelUnavailableError, top_logprobs
from astrai.kvcache import DecodeSteps, PagePool
from astrai.sampling import SampledRows
from astrai.sampling.device_sampler import (
    WORDS_PER_ROW,
    DeviceSampler,
    RowDraw,
    RowParams,
    RowPlan,
    token_logprobs,
)

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import StepBatch
    from astrai.models import CausalLM

__all__ = ["DeviceExecutor"]


class DeviceExecutor:
    """Launches groups on a stream of its own. Called by the scheduler's thread alone, in inference
    mode."""

    runs_ahead = True

    def __init__(
        self,
        model: CausalLM,
        pool: PagePool,
        sampler: DeviceSampler,
        enable_cuda_graph: bool = True,
        max_prompt_rows: int = 0,
    ) -> None:
        """max_prompt_rows: rows up to which steps with chunks of prompts are padded and computed
        at fixed addresses."""
        self._model = model
        self._pool = pool
        self._sampler = sampler
        self._max_rows = pool.host.max_batch_size
        self._last_ids = torch.zeros(self._max_rows + 1, dtype=torch.int32, device=pool.device)
        self._steps = DecodeSteps(pool, WORDS_PER_ROW)
        vocab_size = model.config.vocab_size
        self._decode = DecodeRunner(
            model, sampler, self._last_ids, vocab_size, model.dtype, enable_cuda_graph
        )
        self._prompts: PromptRunner | None = None
        if max_prompt_rows:
            any_cache = self._steps.stage([], [], 1).fixed.batch.kv_cache
            self._prompts = PromptRunner(model, any_cache, max_prompt_rows, enable_cuda_graph)
        self._fixed_selections: dict[Any, bool] = {}
        self._stream = torch.cuda.Stream(pool.device)  # type: ignore[no-untyped-call]  # torch
        self._stream.wait_stream(torch.cuda.current_stream(pool.device))
        self._is_entered = False
        if enable_cuda_graph:
            self._capture_graphs()

    def launch(self, group: StepGroup[EngineTask], slots: list[int]) -> LaunchedRows:
        """Launch the forward of a group and the draw of its first n_sampled tasks, whose sampler
        slots these are. Raises what the model raises; what the device meets shows in `result`."""
        if not self._is_entered:  # the stream of a thread is the thread's
            torch.cuda.set_device(self._pool.device)
            torch.cuda.set_stream(self._stream)
            self._is_entered = True
        is_fixed = group.n_decode == len(group.tasks) and not group.is_replay
        if is_fixed and self._has_fixed_decode(group.selection):
            return self._launch_decode(group, slots)
        return self._launch_ragged(group, slots)

    def _capture_graphs(self) -> None:
        """Capture every number of rows now, so that no request waits for it. Largest first: the
        others then fit into its memory. The steps have padding rows alone."""
        selection = Selection(None, "automatic")
        if not self._has_fixed_decode(selection):
            return
        with torch.inference_mode(), torch.cuda.stream(self._stream), use_selection(selection):
            for n_rows in reversed(graph_sizes(self._max_rows)):
                staged = self._steps.stage([], [], n_rows)
                self._sampler.plan([], [], staged.extra.numpy(), n_rows)
                self._steps.send(staged)
                for has_wide_rows in (False, True):
                    self._decode.draw(staged.fixed, has_wide_rows)
            if self._prompts is not None:
                for size in reversed(prompt_sizes(self._prompts.max_tokens)):
                    self._prompts.capture(size)

    def _launch_decode(self, group: StepGroup[EngineTask], slots: list[int]) -> LaunchedRows:
        n_padded = padded_rows(len(slots), self._max_rows)
        staged = self._steps.stage(group.req_indices, group.starts, n_padded, group.rope_offsets)
        plan = self._sampler.plan(slots, group.req_indices, staged.extra.numpy(), n_padded)
        self._steps.send(staged)
        step = staged.fixed
        with use_selection(group.selection):
            if plan.is_plain:
                return LaunchedRows(
                    self._sampler, plan, self._decode.draw(step, plan.has_wide_rows)
                )
            logits = self._decode.logits(step)
        return self._draw(
            plan, logits, RowParams.of(step.extra), step.batch.kv_cache.req_pool_indices
        )

    def _launch_ragged(self, group: StepGroup[EngineTask], slots: list[int]) -> LaunchedRows:
        n, n_decode = group.n_sampled, group.n_decode
        batch = self._pool.plan_step(
            group.req_indices, group.starts, group.q_lens, n_decode, group.rope_offsets
        )
        rows = batch.kv_cache.req_pool_indices
        if n_decode and not group.is_replay:  # they come first, one token each
            batch.input_ids[:n_decode] = self._last_ids.index_select(0, rows[:n_decode])
        indices = batch.logits_indices
        if n < len(group.tasks):
            indices = indices[: max(n, 1)]  # the forward gives logits of some row
        with use_selection(group.selection):
            logits = self._logits(batch, indices)
        words = torch.empty(WORDS_PER_ROW * n, dtype=torch.int32, pin_memory=True)
        plan = self._sampler.plan(slots, group.req_indices[:n], words.numpy())
        if n == 0:
            return LaunchedRows(self._sampler, plan, None)
        params = RowParams.of(words.to(self._pool.device, non_blocking=True))
        return self._draw(plan, logits, params, rows[:n])

    def _logits(self, batch: StepBatch, indices: Tensor) -> Tensor:
        """Logits of rows indices of a step that has chunks of prompts, or decodes one by one."""
        fwd = "decode" if batch.is_decode else "prefill"
        prompts = self._prompts
        if prompts is None or batch.is_decode or len(batch.input_ids) > prompts.max_tokens:
            return self._model.forward(
                batch.input_ids, batch.position_ids, batch.kv_cache, fwd, indices
            )
        residual, attended = prompts.run(batch)
        return self._model.finish(
            residual.index_select(0, indices), attended.index_select(0, indices)
        )

    def _draw(self, plan: RowPlan, logits: Tensor, params: RowParams, rows: Tensor) -> LaunchedRows:
        """Draw a token of each row of logits with all that the rows ask for."""
        n = len(logits)
        out = RowDraw.of(self._last_ids.new_empty(RowDraw.n_words(n)), n)
        masks = self._sampler.masks(plan, n)
        self._sampler.draw(logits, params, out, plan.has_wide_rows, masks)
        self._decode.keep(out, params, rows)
        return LaunchedRows(self._sampler, plan, out, logits)

    def _has_fixed_decode(self, selection: Any) -> bool:
        """Whether the backend of this selection can be part of a graph, hence of a fixed step."""
        known = self._fixed_selections.get(selection)
        if known is None:
            config = self._model.config
            call = AttentionCall(
                fwd="decode",
                q_rank=3,
                n_heads=config.n_heads,
                n_kv_heads=config.n_kv_heads,
                head_dim=config.head_dim,
                dtype=self._model.dtype,
                device_type=self._pool.device.type,
                has_cache=True,
                has_mask=False,
                needs_grad=False,
            )
            try:
                with use_selection(selection):
                    known = backend_for(call).supports_graph()
            except KernelUnavailableError:
                known = False  # the forward will say so
            self._fixed_selections[selection] = known
        return known


class LaunchedRows:
    """The draw of a step on its way to the host."""

    def __init__(
        self,
        sampler: DeviceSampler,
        plan: RowPlan,
        out: RowDraw | None,
        logits: Tensor | None = None,
    ) -> None:
        """out: None when no row draws. logits: of the rows, where some ask for logprobs."""
        self._sampler = sampler
        self._plan = plan
        self._words: Tensor | None = None
        self._tops: list[Tensor] | None = None
        if out is not None:
            self._words = _to_host(out.words)
            self._n_padded = len(out.token_ids)
        if out is not None and plan.n_top is not None and logits is not None:
            most = max(n for n in plan.n_top if n is not None)
            n = plan.n_rows
            tops = top_logprobs(logits[:n], out.token_ids[:n], most)
            self._tops = [_to_host(part) for part in tops]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch
        self._done.record()

    def wait(self) -> None:
        self._done.synchronize()

    def result(self) -> SampledRows:
        self.wait()
        if self._words is None:
            return SampledRows([], frozenset(), None)
        n = self._plan.n_rows
        token_ids: list[int] = self._words[:n].tolist()
        flags = self._words[self._n_padded :].view(torch.uint8)[:n]
        faulty_rows = frozenset[int]()
        if flags.any():
            faulty_rows = frozenset(flags.nonzero().flatten().tolist())
        completed_rows, grammar_errors = self._sampler.note(self._plan, token_ids, faulty_rows)
        logprobs = None
        if self._plan.n_top is not None and self._tops is not None:
            logprobs = token_logprobs(
                self._plan.n_top, token_ids, *(part.tolist() for part in self._tops)
            )
        return SampledRows(token_ids, faulty_rows, logprobs, completed_rows, grammar_errors)


def _to_host(tensor: Tensor) -> Tensor:
    """Its copy in pinned memory, on its way."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
