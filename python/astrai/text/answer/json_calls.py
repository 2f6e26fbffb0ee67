"""Calls written as JSON: `{"name": ..., "arguments": {...}}`, alone, in a list, or in tags.

The names of the members differ between models ("parameters", "function"); all of them are read.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from astrai.text.answer.brackets import BracketScanner, MalformedError
from astrai.text.answer.call_body import (
    Call,
    CallBody,
    CallError,
    Calls,
    Refusal,
    Tools,
    json_text,
    skip_space,
)

__all__ = ["BareJsonBody", "JsonBody", "arguments_text", "read_calls"]

_ARGUMENT_KEYS = ("arguments", "parameters")
_CALL_KEYS = ("name", "function", "type", "id", *_ARGUMENT_KEYS)
_FIRST_KEY = re.compile(r'[\[\s]*\{\s*"([^"\\]*)"')
_PART_OF_FIRST_KEY = re.compile(r'[\[\s]*(?:\{\s*(?:"[^"\\]{0,16})?)?')
_FENCE = "```"
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Not strict: models write line ends into strings as they are.
_LENIENT = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)


def read_calls(text: str, tools: Tools) -> tuple[Call, ...]:
    """The calls that a JSON object, or a list of objects, describes. Raises CallError."""
    try:
        if text.startswith("["):
            calls = tuple(_read_call(item, tools) for item in _items(text))
            if calls:
                return calls
            raise CallError("malformed")
        return (_read_call(text, tools),)
    except CallError:
        raise
    except (ValueError, RecursionError):
        raise CallError("malformed") from None


def arguments_text(text: str) -> str:
    """JSON text of an arguments object as the model wrote it. Raises ValueError for another kind.

    None at all and null are {}; an object written into a string is taken out of it.
    """
    value = _LENIENT.decode(text)
    if isinstance(value, str):
        text = value.strip() or "{}"
        value = _LENIENT.decode(text)
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise ValueError("arguments are no object")
    try:
        _STRICT.decode(text)
    except ValueError:
        return json_text(value)  # control characters in strings get escapes
    return text


def _read_call(text: str, tools: Tools) -> Call:
    members = _members(text)
    inner = members.get("function", "")
    if inner.startswith("{"):
        members = _members(inner)
    name = _LENIENT.decode(members.get("name", members.get("function", "null")))
    if not isinstance(name, str):
        raise CallError("malformed")
    if name not in tools:
        raise CallError("unknown_tool", name)
    raw = next((members[key] for key in _ARGUMENT_KEYS if key in members), "{}")
    return Call(name, arguments_text(raw))


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object, their values as they are written."""
    if not text.startswith("{"):
        raise ValueError("no object")
    members: dict[str, str] = {}
    at = skip_space(text, 1)
    while text[at] != "}":
        key, at = _LENIENT.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError("a key is no string")
        at = skip_space(text, at)
        if text[at] != ":":
            raise ValueError("no colon behind a key")
        start = skip_space(text, at + 1)
        _, end = _LENIENT.raw_decode(text, start)
        members[key] = text[start:end]
        at = _next_item(text, end, "}")
    return members


def _items(text: str) -> list[str]:
    """The items of a JSON list as they are written."""
    items: list[str] = []
    at = skip_space(text, 1)
    while text[at] != "]":
        _, end = _LENIENT.raw_decode(text, at)
        items.append(text[at:end])
        at = _next_item(text, end, "]")
    return items


def _next_item(text: str, end: int, closer: str) -> int:
    """Index of the next item, or of the closer; a comma before the closer is let pass."""
    at = skip_space(text, end)
    if text[at] == ",":
        return skip_space(text, at + 1)
    if text[at] != closer:
        raise ValueError("no comma between items")
    return at


class JsonBody(CallBody):
    """JSON between tags: one object or list, or several one after the other."""

    def __init__(self, tools: Tools, opening: str, close: str) -> None:
        """close: the closing tag, "" where the end of the first value is the end. A text that ends
        before its closing tag, but not before the end of a value, is complete."""
        self._tools = tools
        self._close = close
        self._at = len(opening)
        self._scanner: BracketScanner | None = None
        self._start = 0  # of the value being scanned
        self._values: list[str] = []

    def scan(self, raw: str, is_end: bool) -> Calls | Refusal | None:
        while True:
            if self._scanner is not None:
                try:
                    end = self._scanner.scan(raw)
                except MalformedError as error:
                    return Refusal("malformed", error.at)
                if end is None:
                    return None
                self._values.append(raw[self._start : end])
                self._scanner = None
                self._at = end
                if not self._close:
                    return self._read(end)
            at = self._at = skip_space(raw, self._at)
            has_value = bool(self._values)
            if at == len(raw):
                return self._read(at) if is_end and has_value else None
            rest = raw[at : at + len(self._close)]
            if has_value and rest == self._close:
                return self._read(at + len(rest))
            if has_value and self._close.startswith(rest):
                return self._read(len(raw)) if is_end else None
            if raw[at] in "{[":
                self._start = at
                self._scanner = BracketScanner(at)
            elif has_value and raw[at] in ",}]":
                self._at = at + 1  # one bracket too many: a slip that large models make too
            else:
                return Refusal("malformed", at)

    def _read(self, end: int) -> Calls | Refusal:
        try:
            calls = [call for value in self._values for call in read_calls(value, self._tools)]
        except CallError as error:
            return Refusal(error.reason, end, error.name)
        return Calls(tuple(calls), end)


class BareJsonBody(CallBody):
    """JSON without a tag where an answer begins, perhaps in a Markdown fence. It may as well be an
    ordinary answer in JSON: it is an attempt at a call when it names a tool, or has a name and
    arguments."""

    def __init__(self, tools: Tools, opening: str) -> None:
        """opening: the first bracket, or a fence ("```json") before it."""
        self._tools = tools
        self._opening = opening
        self._fence = _FENCE if opening.startswith(_FENCE) else ""
        self._start = 0
        self._scanner: BracketScanner | None = None
        self._end: int | None = None

    def scan(self, raw: str, is_end: bool) -> Calls | Refusal | None:
        if self._scanner is None:
            start = skip_space(raw, len(self._opening)) if self._fence else 0
            key = _FIRST_KEY.match(raw, start)
            if key is None and _PART_OF_FIRST_KEY.fullmatch(raw, start) and not is_end:
                return None
            if key is None or key.group(1) not in _CALL_KEYS:
                return Refusal(None, len(self._opening))
            self._start = start
            self._scanner = BracketScanner(start)
        if self._end is None:
            try:
                self._end = self._scanner.scan(raw)
            except MalformedError as error:
                return self._refuse(raw, Refusal("malformed", error.at))
        end = self._end
        if end is None:
            return self._refuse(raw, Refusal("truncated", len(raw))) if is_end else None
        value = raw[self._start : end]
        try:
            calls = read_calls(value, self._tools)
        except CallError as error:
            return self._refuse(value, Refusal(error.reason, end, error.name))
        after = skip_space(raw, end)
        rest = raw[after : after + len(self._fence)]
        if rest == self._fence:
            end = after + len(rest) if rest else end
        elif self._fence.startswith(rest) and not is_end:
            return None
        return Calls(calls, end)

    def _refuse(self, raw: str, refusal: Refusal) -> Refusal:
        """The refusal, without its reason where the text is no attempt at a call."""
        named = _NAME.search(raw)
        is_attempt = named is not None and (
            named.group(1) in self._tools
            or (refusal.reason == "unknown_tool" and _has_arguments(raw))
        )
        return refusal if is_attempt else Refusal(None, refusal.end)


def _has_arguments(text: str) -> bool:
    try:
        items: list[Any] = _items(text) if text.startswith("[") else [text]
        return all(any(key in _members(item) for key in _ARGUMENT_KEYS) for item in items)
    except (ValueError, RecursionError):
        return False
