"""What crosses the seam between the engine and its callers: a request in, token events out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from astrai.sampling.logprobs import TokenLogprob
from astrai.sampling.params import SamplingParams
from astrai.structured.grammar import Grammar

__all__ = ["FinishReason", "GenerationRequest", "TokenEvent", "merge_events", "new_request_id"]

FinishReason = Literal["stop", "length", "error", "cancelled"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation, tokenized.

    prompt_ids: at least one id of the model's vocabulary. namespace: only prompts of the same
    namespace share cached KV pages (adapter, tenant or cache salt).
    every_token: send an event for each token even when it gives no text yet.
    selection: what `astrai.extension.current_selection()` gave where the request was made; None
    lets the client capture it at submit. grammar: what the answer must look like, whole.
    request_id: its name in its events, used once; left out, the client makes one.
    """

    prompt_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    namespace: str = ""
    every_token: bool = False
    selection: Any = None
    grammar: Grammar | None = None
    request_id: str = ""


class TokenEvent(NamedTuple):
    """News of one request after a step. A tuple: 64 of them are built in every step.

    text, token_ids and logprobs are what is new since the last event of the request (an id whose
    text is held back arrives with the event that releases it). logprobs is None unless asked for.
    finish_reason is set on the last event, exactly once. n_output counts generated tokens, the end
    token included; n_cached counts the prompt tokens found in the prefix cache.
    """

    request_id: str
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason | None
    stop_string: str | None
    error: str | None
    n_prompt: int
    n_cached: int
    n_output: int


def new_request_id() -> str:
    return f"req-{secrets.token_hex(12)}"


def merge_events(events: list[TokenEvent]) -> TokenEvent:
    """One event that says what these consecutive events of one request say; not empty."""
    last = events[-1]
    if len(events) == 1:
        return last
    logprobs = [entry for event in events for entry in event.logprobs or ()]
    return last._replace(
        text="".join(event.text for event in events),
        token_ids=[token_id for event in events for token_id in event.token_ids],
        logprobs=logprobs if any(event.logprobs is not None for event in events) else None,
    )
