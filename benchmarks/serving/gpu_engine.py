"""An engine with random weights on a GPU, in this process, and a client that takes the time.

Text is made (a word for each id) and dropped; there is no HTTP in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from benchmarks.serving.timeline import Timeline
from benchmarks.serving.workloads import TEMPERATURE, Work

from astrai.engine import GenerationRequest, InferenceEngine, TokenEvent
from astrai.models import CausalLM
from astrai.models.build import build_model
from astrai.models.config import ModelConfig
from astrai.models.random_weights import RandomWeights
from astrai.sampling import SamplingParams


class WordTokenizer:
    """One word for each id; what an engine uses of a tokenizer."""

    strips_leading_space = False

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def token_bytes(self) -> list[bytes]:
        return [f" w{token_id}".encode() for token_id in range(self._vocab_size)]

    def special_flags(self) -> bytes:
        return bytes(self._vocab_size)


def random_model(
    config: ModelConfig, max_seq_len: int, device: torch.device | str = "cuda"
) -> CausalLM:
    """In bfloat16."""
    return build_model(
        config,
        RandomWeights(config),
        device=torch.device(device),
        dtype=torch.bfloat16,
        max_len=max_seq_len,
    )


def make_engine(
    config: ModelConfig, max_seq_len: int, max_batch_size: int, **options: Any
) -> InferenceEngine:
    model = random_model(config, max_seq_len)
    tokenizer: Any = WordTokenizer(config.vocab_size)
    return InferenceEngine(
        model,
        tokenizer,
        max_batch_size,
        max_seq_len,
        kv_mode="paged",
        max_queue=4096,
        **options,
    )


class Client:
    """Submits requests and notes when their events come."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._timelines: dict[str, Timeline] = {}
        self._n_open = 0
        self._began_at = 0.0

    def run(
        self,
        work: Sequence[Work],
        arrivals: Sequence[float] | None = None,
        namespace: str = "",
        top_k: int = 0,
    ) -> list[Timeline]:
        """Send all of it, at the given seconds or at once, and wait for the end."""
        self._timelines.clear()
        self._began_at = time.perf_counter()
        order = []
        for i, one in enumerate(work):
            if arrivals is not None:
                time.sleep(max(0.0, arrivals[i] - self._now()))
            params = SamplingParams(
                temperature=TEMPERATURE, top_k=top_k, max_tokens=one.n_output, ignore_eos=True
            )
            request = GenerationRequest(one.prompt_ids, params, namespace)
            timeline = Timeline(self._now())
            with self._changed:
                self._n_open += 1
                request_id = self._engine.client.submit(request, self._on_events)
                self._timelines[request_id] = timeline
                order.append(timeline)
        with self._changed:
            self._changed.wait_for(lambda: self._n_open == 0)
        wanted = [one.n_output for one in work]
        if [timeline.n_tokens for timeline in order] != wanted:
            raise RuntimeError("a request has not given the tokens that were asked for")
        return order

    def _now(self) -> float:
        return time.perf_counter() - self._began_at

    def _on_events(self, events: list[TokenEvent]) -> None:
        now = self._now()
        with self._changed:
            for event in events:
                timeline = self._timelines[event.request_id]
                timeline.times.append(now)
                timeline.n_tokens += len(event.token_ids)
                timeline.n_chars += len(event.text)
                if event.finish_reason is not None:
                    timeline.is_ended = True
                    self._n_open -= 1
            if self._n_open == 0:
                self._changed.notify_all()
