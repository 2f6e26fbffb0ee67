"""What crosses between the server and the engine's process: JSON arrays, their kind first.

    to the engine    ["start", settings]                     once, before all others
                     ["submit", request], ["cancel", request id]
                     ["ask", number, question, argument]     a question is answered in any order
                     ["stop"]                                end open requests, then the process
    to the server    ["failed", message]                     in place of "ready"
                     ["ready", facts]                        once, before all others
                     ["events", [event, ...]]                of one step
                     ["answer", number, result], ["refusal", number, error]

Dataclasses are objects, named tuples arrays, a log-probability of -inf is null. Both ends are of
one installation: there is no version, and what is read is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from astrai.engine.errors import EngineError, QueueFullError, RequestError
from astrai.engine.histogram import HistogramSnapshot
from astrai.engine.inspection import Inspection, PageCounts, RequestView
from astrai.engine.limits import RequestLimits
from astrai.engine.request import GenerationRequest, TokenEvent
from astrai.engine.step_log import StepRecord
from astrai.sampling import SamplingParams, TokenLogprob
from astrai.structured import Grammar

__all__ = [
    "EngineFacts",
    "EngineNumbers",
    "decode",
    "encode",
    "error_message",
    "read_error",
    "read_event",
    "read_facts",
    "read_grammar",
    "read_inspection",
    "read_numbers",
    "read_request",
]


@dataclass(frozen=True, slots=True)
class EngineNumbers:
    """`EngineClient.stats` and `EngineClient.histograms` at one time."""

    stats: dict[str, object]
    histograms: dict[str, HistogramSnapshot]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the server has to know of an engine that is ready. max_open: requests that may be open
    together. description: (name, text) lines for whoever started it."""

    limits: RequestLimits
    max_open: int
    sampling_defaults: Mapping[str, float]
    numbers: EngineNumbers
    description: list[tuple[str, str]]


def encode(*message: Any) -> bytes:
    """Raises TypeError for text that is not valid Unicode."""
    return orjson.dumps(message, default=tuple, option=orjson.OPT_NON_STR_KEYS)


def decode(content: bytes) -> list[Any]:
    message: list[Any] = orjson.loads(content)
    return message


def read_event(fields: list[Any]) -> TokenEvent:
    event = TokenEvent._make(fields)
    if event.logprobs is None:
        return event
    logprobs = [
        TokenLogprob(
            token_id, _read_logprob(logprob), tuple((other, _read_logprob(x)) for other, x in top)
        )
        for token_id, logprob, top in event.logprobs
    ]
    return event._replace(logprobs=logprobs)


def _read_logprob(written: float | None) -> float:
    return -math.inf if written is None else written


def read_request(fields: dict[str, Any]) -> GenerationRequest:
    params, grammar = fields["params"], fields["grammar"]
    bias = params["logit_bias"]
    params |= {
        "logit_bias": bias and {int(token_id): value for token_id, value in bias.items()},
        "stop": tuple(params["stop"]),
        "stop_token_ids": tuple(params["stop_token_ids"]),
        "shown_token_ids": tuple(params["shown_token_ids"]),
    }
    return GenerationRequest(
        **{
            **fields,
            "params": SamplingParams(**params),
            "grammar": None if grammar is None else read_grammar(grammar),
        }
    )


def read_grammar(fields: dict[str, Any]) -> Grammar:
    return Grammar(**fields)


def read_facts(fields: dict[str, Any]) -> EngineFacts:
    limits = fields["limits"]
    return EngineFacts(
        limits=RequestLimits(**{**limits, "end_ids": tuple(limits["end_ids"])}),
        max_open=fields["max_open"],
        sampling_defaults=fields["sampling_defaults"],
        numbers=read_numbers(fields["numbers"]),
        description=[(name, text) for name, text in fields["description"]],
    )


def read_numbers(fields: dict[str, Any]) -> EngineNumbers:
    histograms = {
        name: HistogramSnapshot(tuple(bounds), counts, total)
        for name, (bounds, counts, total) in fields["histograms"].items()
    }
    return EngineNumbers(fields["stats"], histograms)


def read_inspection(fields: dict[str, Any]) -> Inspection:
    return Inspection(
        **{
            **fields,
            "requests": [RequestView._make(view) for view in fields["requests"]],
            "pages": PageCounts(**fields["pages"]),
            "steps": [_read_step(step) for step in fields["steps"]],
        }
    )


def _read_step(fields: list[Any]) -> StepRecord:
    step = StepRecord._make(fields)
    return step._replace(ttft_s=tuple(step.ttft_s))


def error_message(error: Exception) -> dict[str, Any]:
    """An error as `read_error` makes it again: those of the caller and of a full queue as they
    are, any other one as an EngineError."""
    fields: dict[str, Any] = {"message": str(error)}
    if isinstance(error, RequestError):
        fields |= {"code": error.code, "param": error.param}
    elif isinstance(error, QueueFullError):
        fields |= {"retry_after_s": error.retry_after_s}
    return fields


def read_error(fields: dict[str, Any]) -> Exception:
    if "code" in fields:
        return RequestError(**fields)
    if "retry_after_s" in fields:
        return QueueFullError(**fields)
    return EngineError(fields["message"])
