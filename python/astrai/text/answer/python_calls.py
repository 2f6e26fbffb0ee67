"""Calls written as Python, a list of calls with literal keyword arguments: `[f(a=1), g(b="x")]`.

Read by a small parser of literals, never by Python's own: what a model writes is not compiled.
"""

from __future__ import annotations

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

__all__ = ["PythonBody", "read_python_calls"]

_HEAD = re.compile(r"\[\s*[A-Za-z_][\w.-]*\s*\(")
_PART_OF_HEAD = re.compile(r"\[\s*(?:[A-Za-z_][\w.-]*\s*)?")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'" + r'|"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_MAX_DIGITS = 400  # of an integer; Python itself refuses to read much longer ones


class PythonBody(CallBody):
    """A bracketed list of calls where an answer begins."""

    def __init__(self, tools: Tools, opening: str) -> None:
        self._tools = tools
        self._opening = opening
        self._has_head = False
        self._scanner = BracketScanner(0, "\"'")

    def scan(self, raw: str, is_end: bool) -> Calls | Refusal | None:
        if not self._has_head:
            if _HEAD.match(raw) is None:
                is_part = _PART_OF_HEAD.fullmatch(raw) is not None and not is_end
                return None if is_part else Refusal(None, len(self._opening))
            self._has_head = True
        try:
            end = self._scanner.scan(raw)
        except MalformedError as error:
            return Refusal("malformed", error.at)
        if end is None:
            return None
        try:
            return Calls(read_python_calls(raw[:end], self._tools), end)
        except CallError as error:
            return Refusal(error.reason, end, error.name)


def read_python_calls(text: str, tools: Tools) -> tuple[Call, ...]:
    """The calls of a bracketed list. Raises CallError."""
    reader = _Reader(text)
    calls: list[Call] = []
    try:
        reader.take("[")
        while not reader.try_take("]"):
            name = reader.name()
            arguments = reader.keywords()
            if name not in tools:
                raise CallError("unknown_tool", name)
            calls.append(Call(name, json_text(arguments)))
            if not reader.try_take(","):
                reader.take("]")
                break
    except CallError:
        raise
    except (ValueError, RecursionError):
        raise CallError("malformed") from None
    return tuple(calls)


class _Reader:
    """Literals from left to right. Raises ValueError where the text is none. BracketScanner has
    bounded the depth."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def try_take(self, mark: str) -> bool:
        self._at = skip_space(self._text, self._at)
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def take(self, mark: str) -> None:
        if not self.try_take(mark):
            raise ValueError(f"no {mark!r} at {self._at}")

    def name(self) -> str:
        return self._match(_NAME)

    def keywords(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.take("(")
        while not self.try_take(")"):
            key = self.name()
            self.take("=")
            found[key] = self.value()
            if not self.try_take(","):
                self.take(")")
                break
        return found

    def value(self) -> Any:
        for opener, closer in (("[", "]"), ("(", ")")):
            if self.try_take(opener):
                return self._sequence(closer)
        if self.try_take("{"):
            return self._mapping()
        start = self._at  # behind white space: try_take has passed it
        if self._text[start] in "\"'":
            return self._string()
        word = _NAME.match(self._text, start)
        if word is not None:
            if word.group() not in _WORDS:
                self._fail()
            self._at = word.end()
            return _WORDS[word.group()]
        number = self._match(_NUMBER)
        if len(number) > _MAX_DIGITS:
            self._fail()
        return float(number) if set(number) & set(".eE") else int(number)

    def _string(self) -> str:
        literals = []
        while self._text[self._at] in "\"'":  # neighbours are joined, as in Python
            literal = self._match(_STRING)
            literals.append(_ESCAPE.sub(_unescape, literal[1:-1]))
            self._at = skip_space(self._text, self._at)
        return "".join(literals)

    def _sequence(self, closer: str) -> list[Any]:
        items: list[Any] = []
        while not self.try_take(closer):
            items.append(self.value())
            if not self.try_take(","):
                self.take(closer)
                break
        return items

    def _mapping(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self.try_take("}"):
            key = self.value()
            if not isinstance(key, str):
                self._fail()
            self.take(":")
            found[key] = self.value()
            if not self.try_take(","):
                self.take("}")
                break
        return found

    def _match(self, pattern: re.Pattern[str]) -> str:
        self._at = skip_space(self._text, self._at)
        found = pattern.match(self._text, self._at)
        if found is None:
            self._fail()
        self._at = found.end()
        return found.group()

    def _fail(self) -> NoReturn:
        raise ValueError(f"no literal at {self._at}")


def _unescape(found: re.Match[str]) -> str:
    """The character of an escape; one that Python does not know stands for itself."""
    for digits in found.group(1, 2, 3):
        if digits is not None:
            return chr(int(digits, 16))
    mark = found.group(4)
    if mark in _ESCAPED:
        return _ESCAPED[mark]
    return mark if mark in "\\'\"" else found.group()
