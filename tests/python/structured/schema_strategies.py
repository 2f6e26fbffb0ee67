"""Random JSON schemas of the supported subset, each with at least one small instance."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "name", "x y", "é", 'q"', "a/b", ""])
PATTERNS = st.sampled_from(
    ["^[a-c]{1,3}$", "b", "^x|y$", "[0-9]+", r"^\d{2}-\w$", "^(foo|ba[rz])$"]
)
FORMATS = st.sampled_from(
    ["date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid", "email"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.sampled_from([0.5, -2.25, 1e9])
    | st.sampled_from(["", "a", "é\n", 'q"\\']),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def strings(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    kind = draw(st.sampled_from(["plain", "length", "pattern", "format"]))
    if kind == "length":
        schema["minLength"] = draw(st.integers(0, 4))
        schema["maxLength"] = schema["minLength"] + draw(st.integers(0, 4))
    elif kind == "pattern":
        schema["pattern"] = draw(PATTERNS)
    elif kind == "format":
        schema["format"] = draw(FORMATS)
    return schema


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    low = draw(st.integers(-50, 50))
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(
            st.integers(20, 2000)
        )
    if schema["type"] == "integer" and draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(st.integers(1, 10))
    return schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "maxItems": draw(st.integers(1, 3))}
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, schema["maxItems"]))
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    schema["items"] = draw(inner)
    return schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = (
        draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if (properties) else []
    )
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.just(False) | inner)
    if draw(st.integers(0, 4)) == 0:
        schema["patternProperties"] = {"^p[0-9]$": draw(inner)}
    return schema


@st.composite
def referring(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """A root with definitions, one of which refers to itself."""
    item = draw(inner)
    node = {
        "type": "object",
        "properties": {
            "value": item,
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node, "item": item}, "$ref": "#/$defs/node"}


LEAVES = (
    strings()
    | numbers()
    | st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"type": ["null", "integer"]}, True, {}]
    )
    | st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4))
    | st.builds(lambda value: {"const": value}, VALUES)
)


def _branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        objects(inner)
        | arrays(inner)
        | st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(
            lambda one, other: {"oneOf": [{"type": "array", "items": one, "maxItems": 2}, other]},
            inner,
            strings(),
        )
        | st.builds(
            lambda one, other: {
                "allOf": [
                    {"type": "object", "properties": {"a": one}, "required": ["a"]},
                    {"properties": {"b": other}, "required": ["b"]},
                ]
            },
            inner,
            inner,
        )
    )


INNER = st.recursive(LEAVES, _branches, max_leaves=6)
SCHEMAS = INNER | objects(INNER) | referring(LEAVES)
