"""Steps with chunks of prompts on a GPU: what lies between two attentions is one captured graph.

The rows of a step, up to max_rows, are padded to one of a few sizes and computed in buffers of
their own; a graph of a size holds all that happens from one attention to the next. Attention itself
is launched for the rows that there are: how many requests a step has, and of which lengths, is no
part of a graph. The last layer behind its attention and the head belong to the caller, who needs
them for few rows. Padding rows compute token 0 at position 0 and write to the reserved slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from astrai.extension import reads_written_kv
from astrai.models.workspace import Workspace

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache, StepBatch
    from astrai.models import CausalLM
    from astrai.models.layers import Placed

__all__ = ["PromptRunner", "max_prompt_rows", "padded_tokens", "prompt_sizes"]

# Larger steps take the device longer than the host needs to launch them one by one.
_MOST_PROMPT_TOKENS = 4096


def max_prompt_rows(max_batch_size: int, prefill_chunk: int | None) -> int:
    """Rows of the largest step that is worth a place: a chunk and all who decode beside it."""
    return min(prefill_chunk or _MOST_PROMPT_TOKENS, _MOST_PROMPT_TOKENS) + max_batch_size


def padded_tokens(n_tokens: int, max_tokens: int) -> int:
    """The next of 16, 32, 64, 128, 256, 384, ..., 1024, 1280, ..., 2048, 2560, ... and max_tokens:
    at most a quarter more, from 128 on."""
    if n_tokens <= 128:
        padded = max(16, 1 << (n_tokens - 1).bit_length())
    else:
        step = 128 if n_tokens <= 1024 else 256 if n_tokens <= 2048 else 512
        padded = -(-n_tokens // step) * step
    return min(padded, max_tokens)


def prompt_sizes(max_tokens: int) -> list[int]:
    """Every padded number of tokens, rising."""
    return sorted({padded_tokens(n, max_tokens) for n in range(1, max_tokens + 1)})


@dataclass(frozen=True, slots=True)
class Piece:
    """What is computed before one attention."""

    graph: torch.cuda.CUDAGraph
    placed: Placed  # the heads that it leaves, padding rows included


class PromptRunner:
    """Runs such steps on the current stream. Single-threaded."""

    def __init__(
        self, model: CausalLM, any_cache: KVCache, max_tokens: int, enable_cuda_graph: bool
    ) -> None:
        """any_cache: of the pool that the steps' caches belong to. max_tokens: rows of the largest
        step that runs here. enable_cuda_graph: False launches the same work at the same sizes."""
        self.max_tokens = max_tokens
        self._model = model
        self._any_cache = any_cache
        config = model.config
        # input_ids, position_ids and out_cache_loc
        self._words = torch.zeros(3, max_tokens, dtype=torch.int32, device=model.device)
        self._reserved_slot = any_cache.k_buffer.shape[1] - 1
        self._words[2].fill_(self._reserved_slot)
        residual = model.embedding.new_zeros(max_tokens, config.hidden_size)
        self._space = Workspace.like(config, residual)
        self._residual = residual
        self._attended = residual.new_zeros(max_tokens, config.n_heads, config.head_dim)
        self._enable_cuda_graph = enable_cuda_graph
        self._pieces: dict[int, list[Piece]] = {}
        self._memory = torch.cuda.graph_pool_handle() if enable_cuda_graph else None

    def takes(self, batch: StepBatch) -> bool:
        """Whether a step may run here under the present selection: the pieces write keys and values
        to the cache, and a backend that does not read them there gets whole forwards."""
        is_ragged = not batch.is_decode
        return is_ragged and len(batch.input_ids) <= self.max_tokens and reads_written_kv()

    def run(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """The residual stream [total_q, hidden_size] before the last layer's output projection, and
        what that layer attended, for `CausalLM.finish`, of a step that it `takes`. The next run
        overwrites both."""
        n = len(batch.input_ids)
        size = padded_tokens(n, self.max_tokens)
        self._fill(batch, size)
        cache = replace(batch.kv_cache, prefill_out=self._attended[:n])
        for layer_id, placed in enumerate(self._replayed(size)):
            q, k, v = placed
            heads = (q[:n], None if k is None else k[:n], None if v is None else v[:n])
            attended = self._model.attend(heads, layer_id, cache, "prefill")
            if attended.data_ptr() != self._attended.data_ptr():  # of a backend that allocates
                self._attended[:n].flatten(1).copy_(attended)
        return self._residual[:n], self._attended[:n].flatten(1)

    def capture(self, size: int) -> list[Piece]:
        """The graphs of one size, captured at its first use."""
        known = self._pieces.get(size)
        if known is None:
            for _ in self._computed(size):
                pass  # warms the libraries up
            known = self._pieces[size] = []
            computed = self._computed(size)
            for _ in range(self._model.config.n_layers):
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
                try:
                    placed = next(computed)
                finally:
                    graph.capture_end()
                known.append(Piece(graph, placed))
        return known

    def _fill(self, batch: StepBatch, size: int) -> None:
        n = len(batch.input_ids)
        words = self._words
        words[0, :n].copy_(batch.input_ids)
        words[1, :n].copy_(batch.position_ids)
        words[2, :n].copy_(batch.kv_cache.out_cache_loc)
        if n < size:
            words[:2, n:size].zero_()
            words[2, n:size].fill_(self._reserved_slot)

    def _replayed(self, size: int) -> Iterator[Placed]:
        """Computes up to the next attention each time that it is asked."""
        if not self._enable_cuda_graph:
            yield from self._computed(size)
            return
        for piece in self.capture(size):
            piece.graph.replay()
            yield piece.placed

    def _computed(self, size: int) -> Iterator[Placed]:
        """`_replayed` by single launches."""
        ids, positions, slots = self._words[:, :size]
        cache = replace(self._any_cache, out_cache_loc=slots, scratch={})
        walk = self._model.walk(ids, positions, cache, self._space.first(size))
        attended = self._attended[:size].flatten(1)
        placed = next(walk)
        for _ in range(self._model.config.n_layers - 1):
            yield placed
            placed = walk.send(attended)
        yield placed
