"""What one request asks of the sampler, with the range of every field.

Immutable and free of torch. A `None` or "off" value is defined for each field here; turning a
client's null into a default is the server's work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MAX_LOGPROBS", "MAX_STOP_BYTES", "MAX_STOP_STRINGS", "SamplingParams"]

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_BYTES = 4096  # of one string: the limit of `_C.TextStreams`
_SEED_MIN, _SEED_MAX = -(2**63), 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request.

    temperature: 0 is greedy (argmax of the penalised logits, lowest id on a tie), up to 2.
    top_p: nucleus in [0, 1]; 0 keeps the best token. min_p: share of the best token's probability.
    top_k: 0 and -1 switch it off, more than the vocabulary acts as the vocabulary.
    presence_penalty, frequency_penalty: [-2, 2], count generated tokens.
    repetition_penalty: [0.01, 10], 1 is off, looks at prompt and generated tokens.
    logit_bias: token id to a bias in [-100, 100]. seed: any 64-bit integer, None draws one.
    max_tokens: None is the room that context and pool leave. min_tokens: end ids are masked before.
    stop: strings that end the text. stop_token_ids: ids that end it, beside the model's own end
    ids, which ignore_eos switches off. logprobs: None, or the number of alternatives (0 = only the
    chosen token). skip_special_tokens: special tokens give no text, but for shown_token_ids.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 50
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    shown_token_ids: tuple[int, ...] = ()

    @property
    def is_greedy(self) -> bool:
        """True when no random number is drawn: temperature 0, or a single candidate."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
        )

    def validate(self, vocab_size: int) -> None:
        """Raise ValueError naming the first field that is out of its range; ids < vocab_size."""
        _real("temperature", self.temperature, 0, 2)
        _real("top_p", self.top_p, 0, 1)
        _real("min_p", self.min_p, 0, 1)
        _real("presence_penalty", self.presence_penalty, -2, 2)
        _real("frequency_penalty", self.frequency_penalty, -2, 2)
        # A logit divided by less could leave the range of float32.
        _real("repetition_penalty", self.repetition_penalty, 0.01, 10)
        _integer("top_k", self.top_k, -1)
        _integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise ValueError(
                    f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}"
                )
        if self.seed is not None:
            _integer("seed", self.seed, _SEED_MIN, _SEED_MAX)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        _token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        _token_ids("shown_token_ids", self.shown_token_ids, vocab_size)
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise ValueError(
                    f"logit_bias must map token ids to numbers, got {self.logit_bias!r}"
                )
            _token_ids("logit_bias", self.logit_bias, vocab_size)
            for token_id, bias in self.logit_bias.items():
                _real(f"logit_bias[{token_id}]", bias, -100, 100)
        self._validate_stop()

    def _validate_stop(self) -> None:
        is_tuple = isinstance(self.stop, (tuple, list))
        if not is_tuple or not all(isinstance(stop, str) for stop in self.stop):
            raise ValueError(f"stop must be a tuple of strings, got {self.stop!r}")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS}")
        for stop in self.stop:
            try:
                n_bytes = len(stop.encode())
            except UnicodeEncodeError:  # a lone surrogate
                raise ValueError(f"stop holds {stop!a}, which is not valid Unicode") from None
            if not 1 <= n_bytes <= MAX_STOP_BYTES:
                raise ValueError(
                    f"stop holds a string of {n_bytes} bytes; 1 to {MAX_STOP_BYTES} are accepted"
                )


def _real(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # The range is tested before isfinite(): an int wider than a double would overflow there.
    if not is_number or not low <= value <= high or not math.isfinite(value):
        raise ValueError(f"{name} must be a number from {low} to {high}, got {value!r}")


def _integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        accepted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be {accepted}, got {value}")


def _token_ids(name: str, token_ids: Iterable[Any], vocab_size: int) -> None:
    if isinstance(token_ids, str) or not isinstance(token_ids, Iterable):
        raise ValueError(f"{name} must be a tuple of token ids, got {token_ids!r}")
    for token_id in token_ids:
        is_id = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_id or not 0 <= token_id < vocab_size:
            raise ValueError(
                f"{name} holds {token_id!r}; token ids of this model are 0 to {vocab_size - 1}"
            )
