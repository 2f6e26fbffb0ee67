"""A model without weights: its KV cache holds a number made of all tokens up to a position.

The next logits depend on that number alone, so every fault of paging, chunking, prefix reuse or
preemption changes the text. Runs in microseconds and in exact integers held by float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from astrai.engine import InferenceEngine, TokenEvent

VOCAB_SIZE = 61
END_ID = 60
_PRIME = 65_521  # products with a token stay exact in float32
TOY_FAULT_ID = 59  # a prompt that starts with it gets NaN logits


@dataclass(frozen=True)
class ToyConfig:
    vocab_size: int = VOCAB_SIZE
    n_layers: int = 1
    n_heads: int = 1
    n_kv_heads: int = 1
    head_dim: int = 1
    max_position_embeddings: int = 256


@dataclass
class ToyModel:
    """on_forward runs at the start of each forward on the scheduler's thread."""

    config: ToyConfig = field(default_factory=ToyConfig)
    on_forward: Callable[[], None] = lambda: None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    rope_switch_len: int | None = None
    n_forwards: int = 0

    def parameters(self) -> list[torch.Tensor]:
        return []

    @property
    def max_len(self) -> int:
        return self.config.max_position_embeddings

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        kv_cache: Any,
        fwd: str,
        logits_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.n_forwards += 1
        self.on_forward()
        numbers = kv_cache.k_buffer[0, :, 0, 0]  # [slots]
        tokens, positions = input_ids.tolist(), position_ids.tolist()
        rows = []
        packed = 0
        requests = zip(
            kv_cache.req_pool_indices.tolist(),
            kv_cache.seq_lens_cpu,
            kv_cache.q_lens_cpu,
            strict=True,
        )
        for req_idx, seq_len, q_len in requests:
            slots = kv_cache.req_to_token[req_idx, :seq_len].tolist()
            start = seq_len - q_len
            number = int(numbers[slots[start - 1]]) if start else 1
            for position in range(start, seq_len):
                assert positions[packed] == position
                assert kv_cache.out_cache_loc[packed] == slots[position]
                is_fault = number < 0 or (position == 0 and tokens[packed] == TOY_FAULT_ID)
                number = -1 if is_fault else (number * 64 + tokens[packed] + 1) % _PRIME
                numbers[slots[position]] = number
                rows.append(number)
                packed += 1
        states = torch.tensor(rows, dtype=torch.float64)
        if logits_indices is not None:
            states = states[logits_indices]
        ids = torch.arange(1, VOCAB_SIZE + 1, dtype=torch.float64)
        logits = 4 * torch.sin(states[:, None] * ids * 0.7310585)
        logits[states < 0] = float("nan")
        return logits.float()


class ToyTokenizer:
    """One lower-case letter or digit for each id; the end id is special."""

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"
    strips_leading_space = False
    special_strings = ("<end>",)

    def encode(self, text: str, parse_special: bool = True) -> list[int]:
        return [self.letters.index(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.letters[i] for i in ids if i != END_ID)

    def token_bytes(self) -> list[bytes]:
        return [letter.encode() for letter in self.letters] + [b"<end>"]

    def special_flags(self) -> bytes:
        return bytes(END_ID) + b"\1"


def toy_engine(model: ToyModel | None = None, **options: Any) -> InferenceEngine:
    """An engine over the toy model that checks the pool after every step."""
    model = model or ToyModel()
    tokenizer = options.pop("tokenizer", ToyTokenizer())
    options = {"max_batch_size": 4, "end_ids": (END_ID,)} | options
    integrity: list[Callable[[], None]] = []
    engine = InferenceEngine(
        model,  # type: ignore[arg-type]  # has what an engine uses of a CausalLM
        tokenizer,
        after_step=lambda: [check() for check in integrity] and None,
        **options,
    )
    integrity.append(engine.cache.host.check_integrity)
    return engine


class Collector:
    """A sink that keeps the events and lets a test wait for the last one."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.calls: list[list[TokenEvent]] = []
        self._changed = threading.Condition()

    def __call__(self, events: list[TokenEvent]) -> None:
        with self._changed:
            self.calls.append(events)
            self.events += events
            self._changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile whoever calls the sink waits, and with it the engine."""
        with self._changed:
            yield

    def wait(self, n_finished: int = 1, timeout: float = 30) -> list[TokenEvent]:
        """The last events of n_finished requests."""

        def finished() -> list[TokenEvent]:
            return [event for event in self.events if event.finish_reason is not None]

        with self._changed:
            assert self._changed.wait_for(lambda: len(finished()) >= n_finished, timeout)
            return finished()

    def wait_events(self, n_events: int, timeout: float = 30) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.events) >= n_events, timeout)

    def token_ids(self, request_id: str) -> list[int]:
        events = [event for event in self.events if event.request_id == request_id]
        return [token_id for event in events for token_id in event.token_ids]
