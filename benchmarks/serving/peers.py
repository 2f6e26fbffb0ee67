"""The engines that bench_cpu_engines.py compares, one class each, all with the same three timed
calls.

Each class loads the same weights (the embedded default model) and offers `generate_s(prompts,
n_new) -> float`: wall seconds to prefill `prompts` (token ids, one list a sequence) and decode
`n_new` greedy tokens of each, the end token ignored. Rates are differences of two such calls, so
that what a call costs once does not count. One class is loaded per process: see `worker.py`.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any, Protocol


class Peer(Protocol):
    """What the benchmark asks of an engine."""

    def generate_s(self, prompts: list[list[int]], n_new: int) -> float:
        """Seconds for prefill plus `n_new` greedy tokens for each prompt, as one batch."""


class AstraiPeer:
    """InferenceEngine in this process, contiguous pool: no prefix cache helps a repeated prompt."""

    def __init__(self, model_path: Path, dtype: str, threads: int) -> None:
        import torch

        from astrai import InferenceEngine

        torch.set_num_threads(threads)
        self._engine = InferenceEngine.from_pretrained(
            str(model_path), device="cpu", dtype=dtype, max_batch_size=8, max_seq_len=2048
        )

    def generate_s(self, prompts: list[list[int]], n_new: int) -> float:
        start = time.perf_counter()
        self._engine.generate(prompts, max_tokens=n_new, temperature=0.0, ignore_eos=True)
        return time.perf_counter() - start


class TransformersPeer:
    """`transformers` generate with its default (dynamic) cache."""

    def __init__(self, model_path: Path, dtype: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, dtype))
        self._model.eval()

    def generate_s(self, prompts: list[list[int]], n_new: int) -> float:
        ids = self._torch.tensor(prompts)
        start = time.perf_counter()
        with self._torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=n_new,
                min_new_tokens=n_new,
                pad_token_id=2,
            )
        return time.perf_counter() - start


class LlamaCppPeer:
    """llama.cpp by the C functions that llama-cpp-python binds: one batch a step, greedy."""

    def __init__(self, model_path: Path, dtype: str, threads: int) -> None:
        import llama_cpp

        del dtype  # the file says it
        self._lib: Any = llama_cpp
        self._llama = llama_cpp.Llama(
            str(model_path),
            n_ctx=8192,
            n_batch=1024,
            n_ubatch=1024,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._ctx = self._llama.ctx
        self._n_vocab = self._llama.n_vocab()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 8192, 4096, 1024, 8
        params.n_threads = params.n_threads_batch = threads
        self._ctx = llama_cpp.llama_init_from_model(self._llama.model, params)
        self._batch = llama_cpp.llama_batch_init(4096, 0, 1)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Run (token, position, sequence, wants_logits) rows."""
        batch = self._batch
        for i, (token, pos, seq, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, pos
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, seq, wants_logits
        batch.n_tokens = len(rows)
        if self._lib.llama_decode(self._ctx, batch):
            raise RuntimeError("llama_decode failed")

    def _argmax(self, i: int) -> int:
        import numpy as np

        row = self._lib.llama_get_logits_ith(self._ctx, i)
        return int(
            np.ctypeslib.as_array(
                ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), (self._n_vocab,)
            ).argmax()
        )

    def generate_s(self, prompts: list[list[int]], n_new: int) -> float:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._ctx), True)
        start = time.perf_counter()
        rows, last = [], []
        for seq, prompt in enumerate(prompts):
            rows += [(t, p, seq, p == len(prompt) - 1) for p, t in enumerate(prompt)]
            last.append(len(rows) - 1)
        self._decode(rows)
        tokens = [self._argmax(i) for i in last]
        for step in range(n_new - 1):
            self._decode([(t, len(prompts[s]) + step, s, True) for s, t in enumerate(tokens)])
            tokens = [self._argmax(i) for i in range(len(tokens))]
        return time.perf_counter() - start


PEERS: dict[str, type[AstraiPeer] | type[TransformersPeer] | type[LlamaCppPeer]] = {
    "astrai": AstraiPeer,
    "transformers": TransformersPeer,
    "llama.cpp": LlamaCppPeer,
}
