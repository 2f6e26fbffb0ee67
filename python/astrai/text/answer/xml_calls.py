"""Calls written in tags, as Qwen3-Coder's template asks for them:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    any text
    </parameter>
    </function>
    </tool_call>

Values are bare text; what they are in JSON follows from the tool's parameter schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from astrai.text.answer.call_body import (
    Call,
    CallBody,
    Calls,
    Refusal,
    Tools,
    json_text,
    skip_space,
)
from astrai.text.answer.json_calls import JsonBody

__all__ = ["XmlBody", "json_types", "typed_value"]

_FUNCTION, _PARAMETER = "<function=", "<parameter="
_END_PARAMETER, _END_FUNCTION = "</parameter>", "</function>"
_MAX_NAME = 256
_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class XmlBody(CallBody):
    """One call in tags. The outer tag may be missing, as the model at times leaves it out; JSON
    inside the outer tag is read too."""

    def __init__(self, tools: Tools, opening: str, close: str) -> None:
        """opening: the outer opening tag, or "<function=". close: the outer closing tag."""
        self._tools = tools
        self._opening = opening
        self._close = close
        self._at = 0 if opening == _FUNCTION else len(opening)
        self._search_from = 0  # where the search for the end of the current value goes on
        self._name: str | None = None
        self._arguments: dict[str, Any] = {}
        self._json: JsonBody | None = None

    def scan(self, raw: str, is_end: bool) -> Calls | Refusal | None:
        if self._json is not None:
            return self._json.scan(raw, is_end)
        while True:
            self._at = skip_space(raw, self._at)
            if self._name is None:
                if raw.startswith(("{", "["), self._at) and self._opening != _FUNCTION:
                    self._json = JsonBody(self._tools, self._opening, self._close)
                    return self._json.scan(raw, is_end)
                name = self._tag(raw, _FUNCTION)
                if isinstance(name, str):
                    self._name = name
                    continue
                return name
            if raw.startswith(_END_FUNCTION, self._at):
                return self._finish(raw, self._at + len(_END_FUNCTION), is_end)
            if _END_FUNCTION.startswith(raw[self._at : self._at + len(_END_FUNCTION)]):
                return None
            key = self._tag(raw, _PARAMETER)
            if not isinstance(key, str):
                return key
            if not self._read_value(raw, key):
                return None

    def _tag(self, raw: str, tag: str) -> str | Refusal | None:
        """The name in the tag at the current place, which is passed; None when it is cut off."""
        start = self._at + len(tag)
        if not raw.startswith(tag, self._at):
            is_part = tag.startswith(raw[self._at : start])
            return None if is_part else Refusal("malformed", self._at, self._name)
        end = raw.find(">", start, start + _MAX_NAME)
        if end < 0:
            is_open = len(raw) < start + _MAX_NAME
            return None if is_open else Refusal("malformed", start + _MAX_NAME, self._name)
        if tag == _FUNCTION:
            self._at = end + 1
        else:
            self._search_from = max(self._search_from, end + 1)
        return raw[start:end].strip()

    def _read_value(self, raw: str, key: str) -> bool:
        """Take the value of `key`, if its end is there. The closing tag ends it only where another
        parameter or the function's end follows: a text may speak of tags."""
        start = raw.index(">", self._at) + 1
        while True:
            end = raw.find(_END_PARAMETER, self._search_from)
            if end < 0:
                self._search_from = max(start, len(raw) - len(_END_PARAMETER) + 1)
                return False
            after = skip_space(raw, end + len(_END_PARAMETER))
            if raw.startswith((_PARAMETER, _END_FUNCTION), after):
                break
            rest = raw[after : after + len(_PARAMETER)]
            if _PARAMETER.startswith(rest) or _END_FUNCTION.startswith(rest):
                self._search_from = end
                return False
            self._search_from = end + 1
        text = raw[start:end].removeprefix("\n").removesuffix("\n")
        schema = self._tools.get(self._name or "", {})
        self._arguments[key] = typed_value(text, schema, key)
        self._at = self._search_from = after
        return True

    def _finish(self, raw: str, end: int, is_end: bool) -> Calls | Refusal | None:
        after = skip_space(raw, end)
        rest = raw[after : after + len(self._close)]
        if rest == self._close:
            end = after + len(rest)
        elif self._close.startswith(rest) and not is_end:
            return None
        assert self._name is not None
        if self._name not in self._tools:
            return Refusal("unknown_tool", end, self._name)
        return Calls((Call(self._name, json_text(self._arguments)),), end)


def typed_value(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """A parameter's bare text as the JSON value that the tool's schema asks for; text where it
    asks for none, or where the text is no such value."""
    types = json_types((schema.get("properties") or {}).get(key), schema)
    if not types - {"string"}:
        return text
    word = text.strip()
    if word in _PYTHON_WORDS:
        value: Any = _PYTHON_WORDS[word]
    else:
        try:
            value = json.loads(word)
            json_text(value)
        except (ValueError, RecursionError):
            return text
    kind = _TYPES[type(value)]
    fits = kind in types or (kind == "integer" and "number" in types)
    return value if fits or "string" not in types else text


def json_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema allows; none when it does not say."""
    if not isinstance(schema, dict) or depth > 8:
        return set()
    types: set[str] = set()
    named = schema.get("type")
    types.update([named] if isinstance(named, str) else named or ())
    for value in schema.get("enum") or ():
        types.add(_TYPES.get(type(value), "string"))
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(key) or ():
            types |= json_types(inner, root, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        types |= json_types(found, root, depth + 1)
    return types
