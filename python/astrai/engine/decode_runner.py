"""A whole decode step on a GPU as one function of fixed addresses, and its captured graphs.

The step: the ids that were drawn last, embedding, layers, head, draw, and the drawn ids in their
place for the next step. A graph is captured ahead, or when a number of rows is needed for the first
time: that step runs eagerly, at the same padded size, which also warms the libraries up. All graphs
share one memory pool, as they run one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from astrai.sampling.device_sampler import DeviceSampler, RowDraw, RowParams

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.engine.executor import ForwardModel
    from astrai.kvcache import FixedStep

__all__ = ["N_GRAPH_KINDS", "DecodeRunner", "graph_sizes", "padded_rows"]

N_GRAPH_KINDS = 6  # of one size: two ways to draw, and up to the logits; of each, with shared slots


def padded_rows(n_rows: int, max_rows: int) -> int:
    """The next of 1, 2, 4, 8, 16, 24, 32, ... and max_rows."""
    padded = 1 << (n_rows - 1).bit_length() if n_rows <= 8 else -(-n_rows // 8) * 8
    return min(padded, max_rows)


def graph_sizes(max_rows: int) -> list[int]:
    """Every padded number of rows, rising."""
    return sorted({padded_rows(n, max_rows) for n in range(1, max_rows + 1)})


class DecodeRunner:
    """Runs decode steps on the current stream. Single-threaded."""

    def __init__(
        self,
        model: ForwardModel,
        sampler: DeviceSampler,
        last_ids: Tensor,
        vocab_size: int,
        dtype: torch.dtype,
        enable_cuda_graph: bool,
    ) -> None:
        """last_ids: int32 [max_batch_size + 1] the id drawn last for each row of the pool; the last
        entry is that of padding rows."""
        self._model = model
        self._sampler = sampler
        self._last_ids = last_ids
        self._enable_cuda_graph = enable_cuda_graph
        max_rows = len(last_ids) - 1
        self._draw_words = last_ids.new_empty(RowDraw.n_words(max_rows))
        self._outs: dict[int, RowDraw] = {}  # views of them, by number of rows
        self._logits_shape, self._dtype = (max_rows, vocab_size), dtype
        self._logits: Tensor | None = None  # made when a step first has to be drawn outside
        self._graphs: dict[tuple[int, int, str], torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def capture_draws(self, step: FixedStep) -> None:
        """Capture both ways to draw for the step's number of rows, after one forward that warms
        the libraries up for both."""
        logits = self._forward(step)
        for has_wide_rows in (False, True):
            self._draw(step, logits, has_wide_rows)
            key = self._key(step, _kind(has_wide_rows))
            self._graphs[key] = self._captured(partial(self._whole, step, has_wide_rows))

    def draw(self, step: FixedStep, has_wide_rows: bool) -> RowDraw:
        """Run a step with its draw. The result lies at a fixed address: copy it before the next."""
        self._run(step, _kind(has_wide_rows), partial(self._whole, step, has_wide_rows))
        return self._out(step)

    def logits(self, step: FixedStep) -> Tensor:
        """Run a step up to its logits [n_rows, vocab_size], at a fixed address, for a draw that
        needs more than `draw` does."""
        if self._logits is None:
            self._logits = torch.empty(
                self._logits_shape, dtype=self._dtype, device=self._last_ids.device
            )
        logits = self._logits[: step.n_rows]
        self._run(step, "logits", lambda: logits.copy_(self._forward(step)))
        return logits

    def keep(self, out: RowDraw, params: RowParams, rows: Tensor) -> None:
        """Put what was drawn where the next step finds it. rows: int32 [n] of the pool."""
        self._sampler.keep(out, params, rows, self._last_ids)

    def _whole(self, step: FixedStep, has_wide_rows: bool) -> None:
        self._draw(step, self._forward(step), has_wide_rows)

    def _forward(self, step: FixedStep) -> Tensor:
        batch = step.batch
        ids = self._last_ids.index_select(0, batch.kv_cache.req_pool_indices)
        return self._model.forward(ids, batch.position_ids, batch.kv_cache, "decode")

    def _draw(self, step: FixedStep, logits: Tensor, has_wide_rows: bool) -> None:
        params, out = RowParams.of(step.extra), self._out(step)
        self._sampler.draw(logits, params, out, has_wide_rows)
        self.keep(out, params, step.batch.kv_cache.req_pool_indices)

    def _out(self, step: FixedStep) -> RowDraw:
        out = self._outs.get(step.n_rows)
        if out is None:
            out = self._outs[step.n_rows] = RowDraw.of(self._draw_words, step.n_rows)
        return out

    def _run(self, step: FixedStep, kind: str, function: Callable[[], object]) -> None:
        if not self._enable_cuda_graph:
            function()
            return
        key = self._key(step, kind)
        known = self._graphs.get(key)
        if known is not None:
            known.replay()
            return
        function()
        self._graphs[key] = self._captured(function)

    def _key(self, step: FixedStep, kind: str) -> tuple[int, int, str]:
        return step.n_rows, step.batch.kv_cache.decode_stack_len, kind

    def _captured(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """The launches of a function whose kernels have all run before."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            function()
        finally:
            graph.capture_end()
        return graph


def _kind(has_wide_rows: bool) -> str:
    return "wide" if has_wide_rows else "narrow"
