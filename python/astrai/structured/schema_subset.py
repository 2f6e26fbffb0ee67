"""The JSON schemas that can be enforced: a check that names the first keyword that cannot.

Schemas are those of draft 2020-12 with `definitions` as another name of `$defs`. A keyword that
would not be enforced is refused, never ignored, because an answer is promised to validate.
Pure functions; the schema is walked without recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from astrai.structured.grammar import GrammarError

__all__ = ["FORMATS", "KEYWORDS", "check_schema"]

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
FORMATS = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "uri",
        "uuid",
    }
)
_BIGGEST_COUNT = 1_000_000  # of minLength and its like; more cannot be generated anyway


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value == int(value) and 0 <= value <= _BIGGEST_COUNT


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# Keyword -> (test of its value, what is accepted). An annotation's value is not looked at.
KEYWORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(sorted(TYPES))}, or a list of them"),
    "enum": (lambda v: isinstance(v, list) and bool(v), "a list of at least one value"),
    "const": (lambda _: True, "any value"),
    "$ref": (_is_text, "a reference inside this schema, such as #/$defs/name"),
    "$defs": (_is_named_schemas, "an object of schemas"),
    "definitions": (_is_named_schemas, "an object of schemas"),
    "anyOf": (_is_schemas, "a list of at least one schema"),
    "oneOf": (_is_schemas, "a list of at least one schema"),
    "allOf": (_is_schemas, "a list of at least one schema"),
    "properties": (_is_named_schemas, "an object of schemas"),
    "patternProperties": (_is_named_schemas, "an object of schemas"),
    "additionalProperties": (_is_schema, "a schema or a boolean"),
    "required": (_is_names, "a list of strings"),
    "items": (_is_schema, "a schema or a boolean; for a tuple use prefixItems"),
    "prefixItems": (_is_schemas, "a list of at least one schema"),
    "minItems": (_is_count, f"a whole number from 0 to {_BIGGEST_COUNT}"),
    "maxItems": (_is_count, f"a whole number from 0 to {_BIGGEST_COUNT}"),
    "minLength": (_is_count, f"a whole number from 0 to {_BIGGEST_COUNT}"),
    "maxLength": (_is_count, f"a whole number from 0 to {_BIGGEST_COUNT}"),
    "pattern": (_is_text, "a regular expression"),
    "format": (lambda v: isinstance(v, str) and v in FORMATS, ", ".join(sorted(FORMATS))),
    "minimum": (_is_number, "a number"),
    "maximum": (_is_number, "a number"),
    "exclusiveMinimum": (_is_number, "a number"),
    "exclusiveMaximum": (_is_number, "a number"),
    "multipleOf": (lambda v: _is_number(v) and v > 0, "a number above 0"),
}
_ANNOTATIONS = frozenset(
    {
        "$comment",
        "$schema",
        "default",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
_ONE = ("additionalProperties", "items")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("$defs", "definitions", "properties", "patternProperties")


def check_schema(schema: Any, max_depth: int) -> None:
    """Raise GrammarError, with the place in the schema, for what cannot be enforced.

    max_depth: levels of objects and lists of the schema's own JSON.
    """
    _check_depth(schema, max_depth)
    if not _is_schema(schema):
        raise GrammarError(f"a schema must be an object or a boolean, got {_name(schema)}")
    open_places: list[tuple[str, Any]] = [("#", schema)]
    while open_places:
        path, place = open_places.pop()
        if isinstance(place, bool):
            continue
        for keyword, value in place.items():
            _check_keyword(path, keyword, value, schema)
        open_places.extend(_inner(path, place))


def _check_keyword(path: str, keyword: str, value: Any, root: Any) -> None:
    if keyword in _ANNOTATIONS or (keyword == "$id" and path == "#"):
        return
    known = KEYWORDS.get(keyword)
    if known is None:
        raise GrammarError(f"keyword {keyword[:64]!r} at {path} is not supported")
    is_accepted, accepted = known
    if not is_accepted(value):
        raise GrammarError(f"{keyword} at {path} must be {accepted}; got {_name(value)}")
    if keyword == "$ref" and not _resolves(value, root):
        raise GrammarError(f"$ref at {path} names {value[:200]!r}, which is not in this schema")


def _inner(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside one, with their places."""
    for keyword in _ONE:
        if keyword in schema:
            yield f"{path}/{keyword}", schema[keyword]
    for keyword in _LISTS:
        for idx, inner in enumerate(schema.get(keyword, ())):
            yield f"{path}/{keyword}/{idx}", inner
    for keyword in _NAMED:
        for name, inner in schema.get(keyword, {}).items():
            escaped = name[:64].replace("~", "~0").replace("/", "~1")
            yield f"{path}/{keyword}/{escaped}", inner


def _resolves(ref: str, root: Any) -> bool:
    """Does a reference point into this schema (RFC 6901 in a URI fragment)?"""
    if ref == "#":
        return True
    if not ref.startswith("#/"):
        return False
    place = root
    for step in unquote(ref[2:]).split("/"):
        key = re.sub("~[01]", lambda m: "~" if m.group() == "~0" else "/", step)
        if isinstance(place, dict) and key in place:
            place = place[key]
        elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        else:
            return False
    return _is_schema(place)


def _check_depth(schema: Any, max_depth: int) -> None:
    level = [schema]
    for _ in range(max_depth):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    if any(isinstance(value, (dict, list)) for value in level):
        raise GrammarError(f"the schema is nested deeper than {max_depth} levels")


def _name(value: Any) -> str:
    """A value as an error shows it: short."""
    return "null" if value is None else repr(value)[:80]
