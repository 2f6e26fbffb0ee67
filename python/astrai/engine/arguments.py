"""What callers of `InferenceEngine` give, checked and brought into one shape."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, TypeAlias

from astrai.sampling import SamplingParams

__all__ = [
    "Prompt",
    "as_conversations",
    "as_params",
    "as_prompts",
    "check_integer",
    "check_share",
    "check_timeout",
]

Prompt: TypeAlias = str | list[str] | list[int] | list[list[int]]
Message: TypeAlias = dict[str, Any]

_DEFAULTS = SamplingParams()
_FIELDS = {field.name for field in fields(SamplingParams)}


def as_params(
    params: SamplingParams | None, given: dict[str, Any], vocab_size: int
) -> SamplingParams | None:
    """The checked parameters of a call; None when nothing is to be generated (max_tokens <= 0).

    given: fields of SamplingParams named in the call, which `params` replaces: only one of both
    may be used. Raises ValueError naming the field at fault.
    """
    unknown = sorted(given.keys() - _FIELDS)
    if unknown:
        raise ValueError(
            f"generate: {unknown[0]} is not a parameter; see SamplingParams for those there are"
        )
    if params is not None:
        if not isinstance(params, SamplingParams):
            raise ValueError(f"generate: params must be SamplingParams, got {params!r}")
        changed = [name for name, value in given.items() if value != getattr(_DEFAULTS, name)]
        if changed:
            raise ValueError(f"generate: give {changed[0]} in params or by name, not both")
        given = {name: getattr(params, name) for name in _FIELDS}
    max_tokens = given.get("max_tokens")
    is_empty = type(max_tokens) is int and max_tokens <= 0
    if is_empty:
        given = given | {"max_tokens": None}
    params = SamplingParams(**given)
    params = replace(
        params,
        stop=(params.stop,) if isinstance(params.stop, str) else _as_tuple(params.stop),
        stop_token_ids=_as_tuple(params.stop_token_ids),
    )
    params.validate(vocab_size)
    return None if is_empty else params


def as_prompts(prompt: Any) -> tuple[list[str | list[int]], bool]:
    """The prompts as a list, and whether the caller gave a single one."""
    if isinstance(prompt, str):
        return [prompt], True
    if isinstance(prompt, list):
        if prompt and all(type(token_id) is int for token_id in prompt):
            return [prompt], True
        if all(isinstance(one, (str, list)) for one in prompt):
            return prompt, False
    raise ValueError(
        "prompt must be a str, a list of token ids, or a list of either, got "
        f"{type(prompt).__name__}"
    )


def as_conversations(messages: Any) -> tuple[list[list[Message]], bool]:
    """The conversations as a list, and whether the caller gave a single one."""
    if isinstance(messages, list) and messages:
        if all(isinstance(message, dict) for message in messages):
            return [messages], True
        if all(isinstance(one, list) and one for one in messages):
            for conversation in messages:
                as_conversations(conversation)
            return messages, False
    raise ValueError(
        "chat: messages must be a list of {'role', 'content'} dicts or a list of such lists, none "
        "of them empty"
    )


def _as_tuple(value: Any) -> Any:
    """Any collection as the tuple that SamplingParams holds, None as none; the rest as it is, for
    `validate` to refuse."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Iterable) else value


def check_integer(name: str, value: Any, low: int, high: float = math.inf) -> None:
    if type(value) is not int or not low <= value <= high:
        accepted = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"InferenceEngine: {name} must be an integer {accepted}, got {value!r}")


def check_share(name: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1:
        raise ValueError(f"InferenceEngine: {name} must be a number above 0 up to 1, got {value!r}")


def check_timeout(timeout: Any) -> None:
    """Before anything is submitted: nobody would read what is generated then."""
    if timeout is None:
        return
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not timeout <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"generate: timeout must be None or at most {threading.TIMEOUT_MAX:g} seconds, "
            f"got {timeout!r}"
        )
