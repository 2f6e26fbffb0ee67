"""The effects of a step on a GPU, launched without waiting: ids stay on the device.

A step of decoding tasks alone runs at fixed addresses (`DecodeRunner`); of one with chunks of
prompts, unless it is very large, the parts between the attentions do (`PromptRunner`). Either way a
token that an earlier step draws is read on the device, and the host gets the ids by a copy that it
waits for one step later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from astrai.engine.decode_runner import DecodeRunner, graph_sizes, padded_rows
from astrai.engine.engine_task import EngineTask
from astrai.engine.errors import DeviceLostError
from astrai.engine.plan import StepGroup
from astrai.engine.prompt_runner import PromptRunner, prompt_sizes
from astrai.extension import Selection, use_selection
from astrai.extension.backend.base import AttentionCall
from astrai.extension.backend.selection import backend_for
from astrai.extension.ops import KernelUnavailableError, top_logprobs
from astrai.kvcache import DecodeSteps, HostStaging, PagePool, max_decode_splits
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
        # Of a launch until its result has been read: all copies of it have run then, as its event
        # comes behind them. A launch is over before the next but one, so that two take turns.
        self._staging_bytes = self._bytes_of_a_step(max_prompt_rows)
        self._idle = [self._new_staging() for _ in range(2)]
        vocab_size = model.config.vocab_size
        self._decode = DecodeRunner(
            model, sampler, self._last_ids, vocab_size, model.dtype, enable_cuda_graph
        )
        self._prompts: PromptRunner | None = None
        self.padded_sizes = prompt_sizes(max_prompt_rows)
        self.query_tile = pool.q_tile_rows
        if max_prompt_rows:
            any_cache = self._steps.stage([], [], 1, self._idle[0]).fixed.batch.kv_cache
            self._prompts = PromptRunner(model, any_cache, max_prompt_rows, enable_cuda_graph)
        self._fixed_selections: dict[Any, bool] = {}
        self._stream = torch.cuda.Stream(pool.device)  # type: ignore[no-untyped-call]  # torch
        self._stream.wait_stream(torch.cuda.current_stream(pool.device))
        self._is_entered = False
        if enable_cuda_graph:
            self._capture_graphs()

    def launch(self, group: StepGroup[EngineTask], slots: list[int]) -> LaunchedRows:
        """Launch the forward of a group and the draw of its first n_sampled tasks, whose sampler
        slots these are. Raises what the model raises, and DeviceLostError; what the device meets
        shows in `result`."""
        if not self._is_entered:  # the stream of a thread is the thread's
            torch.cuda.set_device(self._pool.device)
            torch.cuda.set_stream(self._stream)
            self._is_entered = True
        staging = self._idle.pop() if self._idle else self._new_staging()
        try:
            return self._launch(group, slots, staging)
        except Exception as error:
            self._clear(staging, error)
            raise

    def _launch(
        self, group: StepGroup[EngineTask], slots: list[int], staging: HostStaging
    ) -> LaunchedRows:
        is_fixed = group.n_decode == len(group.tasks) and not group.is_replay
        if is_fixed and self._has_fixed_decode(group.selection):
            return self._launch_decode(group, slots, staging)
        return self._launch_ragged(group, slots, staging)

    def _clear(self, staging: HostStaging, error: Exception) -> None:
        """Have back what a failed launch has taken, once its copies have run. Raises
        DeviceLostError where they never will: then it was not the launch that failed."""
        try:
            self._stream.synchronize()
        except RuntimeError as lost:
            raise DeviceLostError(
                f"a kernel has failed, and the GPU is lost to this process: {lost}"
            ) from error
        staging.reset()
        self._idle.append(staging)

    def _new_staging(self) -> HostStaging:
        return HostStaging(self._pool.device, self._staging_bytes)

    def _bytes_of_a_step(self, max_prompt_rows: int) -> int:
        """Staging memory of a usual large step. More than one array of its plan's size is taken
        where its table's changes are many; the rest is small."""
        max_splits = max_decode_splits(self._max_rows, self._pool.host.max_seq_len)
        n_tokens = max(max_prompt_rows, self._max_rows)
        n_words = self._pool.plan.staging_size(n_tokens, self._max_rows, max_splits)
        return 2 * 4 * n_words + (1 << 17)

    def _capture_graphs(self) -> None:
        """Capture what most steps need for every number of rows now, so that no request waits for
        it. Steps of requests that share slots, and those up to the logits, are captured where one
        comes first. Largest first: the others then fit into its memory. The steps have padding
        rows alone."""
        selection = Selection(None, "automatic")
        if not self._has_fixed_decode(selection):
            return
        staging = self._new_staging()
        with torch.inference_mode(), torch.cuda.stream(self._stream), use_selection(selection):
            for n_rows in reversed(graph_sizes(self._max_rows)):
                staged = self._steps.stage([], [], n_rows, staging)
                self._sampler.plan([], [], staged.extra.numpy(), n_rows)
                self._steps.send(staged)
                self._decode.capture_draws(staged.fixed)
                self._stream.synchronize()  # behind it the copies from staging have run
                staging.reset()
            if self._prompts is not None:
                for size in reversed(self.padded_sizes):
                    self._prompts.capture(size)
        self._stream.synchronize()

    def _launch_decode(
        self, group: StepGroup[EngineTask], slots: list[int], staging: HostStaging
    ) -> LaunchedRows:
        n_padded = padded_rows(len(slots), self._max_rows)
        staged = self._steps.stage(
            group.req_indices, group.starts, n_padded, staging, group.rope_offsets
        )
        words = staged.extra.numpy()
        plan = self._sampler.plan(slots, group.req_indices, words, n_padded, staging)
        self._steps.send(staged)
        step = staged.fixed
        with use_selection(group.selection):
            if plan.is_plain:
                out = self._decode.draw(step, plan.has_wide_rows)
                return self._read_back(plan, out, None, staging)
            logits = self._decode.logits(step)
        rows = step.batch.kv_cache.req_pool_indices
        return self._draw(plan, logits, RowParams.of(step.extra), rows, staging)

    def _launch_ragged(
        self, group: StepGroup[EngineTask], slots: list[int], staging: HostStaging
    ) -> LaunchedRows:
        n, n_decode = group.n_sampled, group.n_decode
        batch = self._pool.plan_step(
            group.req_indices, group.starts, group.q_lens, n_decode, group.rope_offsets, staging
        )
        rows = batch.kv_cache.req_pool_indices
        if n_decode and not group.is_replay:  # they come first, one token each
            batch.input_ids[:n_decode] = self._last_ids.index_select(0, rows[:n_decode])
        indices = batch.logits_indices
        if n < len(group.tasks):
            indices = indices[: max(n, 1)]  # the forward gives logits of some row
        with use_selection(group.selection):
            logits = self._logits(batch, indices)
        words = staging.take(WORDS_PER_ROW * n, torch.int32)
        plan = self._sampler.plan(slots, group.req_indices[:n], words.numpy(), staging=staging)
        if n == 0:
            return self._read_back(plan, None, None, staging)
        params = RowParams.of(words.to(self._pool.device, non_blocking=True))
        return self._draw(plan, logits, params, rows[:n], staging)

    def _logits(self, batch: StepBatch, indices: Tensor) -> Tensor:
        """Logits of rows indices of a step that has chunks of prompts, or decodes one by one."""
        fwd = "decode" if batch.is_decode else "prefill"
        prompts = self._prompts
        if prompts is None or not prompts.takes(batch):
            return self._model.forward(
                batch.input_ids, batch.position_ids, batch.kv_cache, fwd, indices
            )
        residual, attended = prompts.run(batch)
        return self._model.finish(
            residual.index_select(0, indices), attended.index_select(0, indices)
        )

    def _draw(
        self,
        plan: RowPlan,
        logits: Tensor,
        params: RowParams,
        rows: Tensor,
        staging: HostStaging,
    ) -> LaunchedRows:
        """Draw a token of each row of logits with all that the rows ask for."""
        n = len(logits)
        out = RowDraw.of(self._last_ids.new_empty(RowDraw.n_words(n)), n)
        masks = self._sampler.masks(plan, n, staging)
        self._sampler.draw(logits, params, out, plan.has_wide_rows, masks)
        self._decode.keep(out, params, rows)
        return self._read_back(plan, out, logits, staging)

    def _read_back(
        self, plan: RowPlan, out: RowDraw | None, logits: Tensor | None, staging: HostStaging
    ) -> LaunchedRows:
        return LaunchedRows(self._sampler, plan, out, logits, staging, self._idle, self._stream)

    def _has_fixed_decode(self, selection: Any) -> bool:
        """Whether steps of this selection can be fixed ones: graphs hold the kernels of automatic
        choice, so that any other backend has forwards of its own."""
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
                    backend = backend_for(call)
                with use_selection(Selection(None, "automatic")):
                    known = type(backend) is type(backend_for(call)) and backend.supports_graph()
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
        logits: Tensor | None,
        staging: HostStaging,
        idle: list[HostStaging],
        stream: torch.cuda.Stream,
    ) -> None:
        """out: None when no row draws. logits: of the rows, where some ask for logprobs. staging:
        of the launch; joins idle when the result is read. stream: of the launch."""
        self._sampler = sampler
        self._plan = plan
        self._staging = staging
        self._idle = idle
        self._words: Tensor | None = None
        self._tops: list[Tensor] | None = None
        if out is not None:
            self._words = self._to_host(out.words)
            self._n_padded = out.token_ids.numel()
        if out is not None and plan.n_top is not None and logits is not None:
            most = max(n for n in plan.n_top if n is not None)
            n = plan.n_rows
            tops = top_logprobs(logits[:n], out.token_ids[:n], most)
            self._tops = [self._to_host(part) for part in tops]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch
        self._done.record(stream)
        self._is_done = False

    def wait(self) -> None:
        if not self._is_done:
            self._done.synchronize()
            self._is_done = True

    def result(self) -> SampledRows:
        self.wait()
        rows = self._rows()
        self._staging.reset()
        self._idle.append(self._staging)
        return rows

    def _rows(self) -> SampledRows:
        if self._words is None:
            return SampledRows([], frozenset(), None)
        n = self._plan.n_rows
        words = self._words.numpy()
        values: list[int] = words.tolist()
        token_ids = values[:n]
        faulty_rows = frozenset[int]()
        if any(values[self._n_padded :]):  # one byte a row, and those of padding rows say nothing
            flags = words[self._n_padded :].view(np.uint8)[:n]
            faulty_rows = frozenset(np.flatnonzero(flags).tolist())
        completed_rows, errors = self._sampler.note(self._plan, token_ids, faulty_rows)
        logprobs = None
        if self._plan.n_top is not None and self._tops is not None:
            logprobs = token_logprobs(
                self._plan.n_top, token_ids, *(part.tolist() for part in self._tops)
            )
        return SampledRows(token_ids, faulty_rows, logprobs, completed_rows, errors)

    def _to_host(self, tensor: Tensor) -> Tensor:
        """Its copy, on its way."""
        host = self._staging.take(tensor.numel(), tensor.dtype)
        if tensor.dim() > 1:
            host = host.view(tensor.shape)
        return host.copy_(tensor, non_blocking=True)
