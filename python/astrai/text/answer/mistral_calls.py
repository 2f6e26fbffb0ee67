"""Calls behind Mistral's `[TOOL_CALLS]` token: a JSON list, or name and arguments apart:

[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
[TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}
"""

from __future__ import annotations

import re

from astrai.text.answer.brackets import BracketScanner, MalformedError
from astrai.text.answer.call_body import (
    Call,
    CallBody,
    CallError,
    Calls,
    Refusal,
    Tools,
    skip_space,
)
from astrai.text.answer.json_calls import arguments_text, read_calls

__all__ = ["MistralBody"]

_HEAD = re.compile(r"([\w.-]{1,256})\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_PART_OF_HEAD = re.compile(r"[\w.\-\[\]\s]{0,512}")


class MistralBody(CallBody):
    """What follows one [TOOL_CALLS]."""

    def __init__(self, tools: Tools, opening: str) -> None:
        self._tools = tools
        self._opening = opening
        self._name: str | None = None  # where it stands apart from the arguments
        self._start = 0  # of the JSON value
        self._scanner: BracketScanner | None = None

    def scan(self, raw: str, is_end: bool) -> Calls | Refusal | None:
        if self._scanner is None:
            start = skip_space(raw, len(self._opening))
            head = _HEAD.match(raw, start)
            if raw.startswith("[", start):
                self._start = start
            elif head is not None:
                self._name, self._start = head.group(1), head.end()
            elif _PART_OF_HEAD.fullmatch(raw, start):
                return None
            else:
                return Refusal("malformed", len(self._opening))
            self._scanner = BracketScanner(self._start)
        try:
            end = self._scanner.scan(raw)
        except MalformedError as error:
            return Refusal("malformed", error.at, self._name)
        return None if end is None else self._read(raw[self._start : end], end)

    def _read(self, value: str, end: int) -> Calls | Refusal:
        try:
            if self._name is None:
                return Calls(read_calls(value, self._tools), end)
            if self._name not in self._tools:
                raise CallError("unknown_tool", self._name)
            return Calls((Call(self._name, arguments_text(value)),), end)
        except CallError as error:
            return Refusal(error.reason, end, error.name)
        except (ValueError, RecursionError):
            return Refusal("malformed", end, self._name)
