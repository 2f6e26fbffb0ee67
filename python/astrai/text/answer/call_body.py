"""What the readers of calls share: `CallBody`, its verdicts, and the words they use."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astrai.text.answer.events import FaultReason

__all__ = ["Call", "CallBody", "CallError", "Calls", "Refusal", "Tools", "json_text", "skip_space"]

# Name of each tool that may be called -> JSON schema of its parameters ({} when it has none).
Tools = Mapping[str, Mapping[str, Any]]

_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Call:
    """A well-formed call. arguments: JSON text of an object."""

    name: str
    arguments: str


class CallError(ValueError):
    """A complete text that is no call of a known tool."""

    def __init__(self, reason: FaultReason, name: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.name = name


@dataclass(frozen=True, slots=True)
class Calls:
    """The text up to `end` is these calls."""

    calls: tuple[Call, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The text up to `end` is ordinary text. reason: None where it never claimed to be a call."""

    reason: FaultReason | None
    end: int
    name: str | None = None


class CallBody(ABC):
    """Reads one call, or one list of calls, from a text that grows."""

    @abstractmethod
    def scan(self, raw: str, is_end: bool) -> Calls | Refusal | None:
        """The verdict on raw, None while more text is needed.

        raw: everything from the opening of the call on; grows from call to call. is_end: nothing
        follows. A verdict depends on the text alone, never on how it was cut.
        """


def skip_space(text: str, at: int) -> int:
    """Index of the first character from `at` on that is no white space."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def json_text(value: Any) -> str:
    """JSON of a value, characters as they are. Raises ValueError for an infinite number."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: only an escape can carry it
        return json.dumps(value)
    return text
