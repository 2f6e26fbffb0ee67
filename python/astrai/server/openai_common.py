"""What both OpenAI routes share: sampling parameters, usage, logprob entries, ids."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Sequence
from typing import Any

from astrai.sampling import SamplingParams, TokenLogprob
from astrai.server.errors import ApiError, bad_request, openai_error
from astrai.server.fields import SamplingFields
from astrai.server.protocol import Choice
from astrai.server.sse import DONE, frame
from astrai.server.text_link import TextLink

MAX_DEPTH = 64  # levels of a tool definition's or a schema's JSON
_LOGPROB_FLOOR = -9999.0  # JSON has no -Infinity


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    return int(time.time())


def check_token_ids(ids: Collection[int], vocab_size: int, param: str) -> None:
    """Refuse ids that the model's vocabulary lacks; it may be larger than the tokenizer's."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
    raise bad_request(
        f"{param} holds token id {wrong}; this model's ids are 0 to {vocab_size - 1}",
        param=param,
        code="invalid_token_id",
    )


def check_depth(values: Sequence[Any], what: str, param: str) -> None:
    """Refuse objects and lists of more levels than templates render and JSON libraries write.

    what: the values and their verb, for the message."""
    level = [value for value in values if isinstance(value, (dict, list))]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise bad_request(f"{what} nested deeper than {MAX_DEPTH} levels", param=param)


def stop_strings(stop: str | list[str] | None, engine: TextLink, param: str) -> tuple[str, ...]:
    """The request's stop strings, checked against the server's limits."""
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    limits = engine.settings
    if len(stops) > limits.max_stop_strings:
        raise bad_request(
            f"{param} has {len(stops)} strings; at most {limits.max_stop_strings} are allowed",
            param=param,
        )
    for text in stops:
        if len(text) > limits.max_stop_chars:
            raise bad_request(
                f"{param} has a string of {len(text)} characters; at most "
                f"{limits.max_stop_chars} are allowed",
                param=param,
            )
    if stops and not engine.has_tokenizer:
        raise bad_request(
            f"this model has no tokenizer, so {param} can match nothing; use stop_token_ids",
            param=param,
            code="no_tokenizer",
        )
    return stops


def sampling_params(
    request: SamplingFields,
    engine: TextLink,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    max_tokens: int,
    logprobs: int | None,
) -> SamplingParams:
    """The engine's parameters of an OpenAI request, without its stop strings.

    logprobs: None, or the number of alternatives to report beside each chosen token.
    """
    limits = engine.settings
    if request.n > limits.max_n:
        raise bad_request(f"n is {request.n}; at most {limits.max_n} is allowed", param="n")
    if logprobs is not None and logprobs > limits.max_logprobs:
        raise bad_request(
            f"{logprobs} alternatives asked for; at most {limits.max_logprobs} are allowed",
            param="top_logprobs",
        )
    check_token_ids(request.logit_bias or (), engine.vocab_size, "logit_bias")
    check_token_ids(request.stop_token_ids or (), engine.vocab_size, "stop_token_ids")
    if request.min_tokens > max_tokens:
        raise bad_request(
            f"min_tokens is {request.min_tokens}, more than max_tokens {max_tokens}",
            param="min_tokens",
        )
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=min(top_k, engine.vocab_size),
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias or None,
        seed=request.seed,
        # A ceiling, so that no integer wider than the engine's counters gets there.
        max_tokens=min(max_tokens, engine.max_seq_len),
        min_tokens=min(request.min_tokens, engine.max_seq_len),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
        skip_special_tokens=request.skip_special_tokens,
    )


def usage_of(choices: list[Choice], n: int) -> dict[str, Any]:
    """Token counts of an answer; a prompt is counted once for its n choices."""
    firsts = choices[::n]
    prompt = sum(choice.n_prompt for choice in firsts)
    completion = sum(choice.n_output for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.reported_hit for choice in firsts)},
    }


def usage_frame(
    head: dict[str, Any], empty_choice: dict[str, Any], usage: dict[str, Any], wanted: bool | None
) -> bytes:
    """The usage event of a stream: SPEC.md's (None), OpenAI's (True) or none (False).

    SPEC.md's carries the counts at top level and is a whole chunk with one empty choice, so that
    loops over `chunk.choices[0]` survive it.
    """
    if wanted is False:
        return b""
    if wanted:
        return frame({**head, "choices": [], "usage": usage})
    counts = {key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return frame({**head, "choices": [empty_choice], "usage": usage, **counts})


def error_frames(error: ApiError) -> bytes:
    """An error in mid-stream, the form the official client raises, and the stream's end."""
    return frame({"error": openai_error(error), "detail": error.message}) + DONE


def finite_logprob(value: float) -> float:
    return value if math.isfinite(value) else _LOGPROB_FLOOR


def chat_logprobs(
    entries: list[TokenLogprob], engine: TextLink, skip_special: bool
) -> dict[str, Any]:
    """OpenAI's logprobs object of a chat choice: one entry for each generated token."""

    def shape(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_text(token_id, engine),
            "logprob": finite_logprob(logprob),
            # Joined, they spell the text.
            "bytes": list(engine.spelled_bytes(token_id, skip_special)),
        }

    return {
        "content": [
            {
                **shape(entry.token_id, entry.logprob),
                "top_logprobs": [shape(token_id, value) for token_id, value in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def token_text(token_id: int, engine: TextLink) -> str:
    """A token as text of its own; special ones by their name."""
    raw = engine.token_bytes()[token_id]
    return raw.decode("utf-8", errors="replace") if raw else f"token_id:{token_id}"
