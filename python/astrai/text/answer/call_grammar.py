"""Grammars that admit calls and nothing else, in llguidance's dialect of Lark.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
Each format's grammar admits a part of what its reader reads: the usual layout, the tools that may
be called, and arguments that fit their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from astrai.text.answer.call_body import Tools
from astrai.text.answer.xml_calls import json_types

__all__ = ["GrammarTerms", "UnenforceableError", "call_grammar"]

_KEYWORD = re.compile(r"[A-Za-z_][\w.-]*")
# Of a parameters schema, what a form that writes each parameter apart can keep.
_SEPARABLE = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_ANNOTATIONS = {"$schema", "$id", "$comment", "title", "description", "examples", "default"}
# Keywords whose values are schemas: by name, in a list, alone.
_NAMED = {"properties", "patternProperties", "$defs", "definitions"}
_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_ONE = {"items", "additionalProperties"}
_TEXT_LIMITS = ("pattern", "format", "minLength", "maxLength")


class UnenforceableError(ValueError):
    """A tool's parameters that a format's grammar cannot express; the message names the tool."""


@dataclass(frozen=True, slots=True)
class GrammarTerms:
    """How to write terms that depend on the model and on what compiles the grammar.

    json: a schema as a term for JSON that fits it. marker: a text that may be a special token.
    is_special: whether it is one.
    """

    json: Callable[[dict[str, Any]], str]
    marker: Callable[[str], str]
    is_special: Callable[[str], bool]


class _Rules:
    """The rules of one grammar. Terms are texts in Lark's notation."""

    def __init__(self, terms: GrammarTerms) -> None:
        self.terms = terms
        self.lines: list[str] = []

    def add(self, body: str, options: str = "") -> str:
        """A new rule; returns its name."""
        name = f"rule_{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def arguments(self, schema: Mapping[str, Any]) -> str:
        """A term for the JSON object of a call's arguments."""
        schema = _bare(schema)
        is_open = schema.get("additionalProperties") not in (None, False)
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        if not properties and not required and not is_open and not set(schema) - _SEPARABLE:
            return _literal("{}")
        if not set(schema) - _SEPARABLE:
            # One that is required without being declared may hold anything.
            properties = {**properties, **{key: {} for key in required if key not in properties}}
            schema = {**schema, "properties": properties}
            # Parameters beyond those declared would be allowed, but the tool ignores them.
            schema = {"additionalProperties": False, **schema}
        return self.add(self.terms.json(dict(schema)))


Call = Callable[[_Rules, str, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class _Layout:
    """One or more calls: before, call, (between, call)*, after. The first three are terms."""

    before: str
    between: str
    after: str
    call: Call


def call_grammar(
    format_name: str,
    tools: Tools,
    terms: GrammarTerms,
    *,
    several: bool,
    reasoning_close: str | None = None,
    text: str | None = None,
) -> str:
    """A grammar of one call, or with `several` one or more, of these tools (at least one).

    text: the body of a rule for what the answer may be in place of calls.
    reasoning_close: the tag up to which the answer goes on with reasoning that the prompt opened.
    Raises UnenforceableError."""
    rules = _Rules(terms)
    layout = _layout(format_name, terms)
    calls = [layout.call(rules, name, _of_object(name, s)) for name, s in tools.items()]
    call = rules.add(" | ".join(calls))
    body = f"{layout.before} {call}"
    if several:
        body += f" ({layout.between} {call})*"
    body += f" {layout.after}"
    if text is not None:
        body = f"({body} | {rules.add(text)})"
    if reasoning_close is not None:
        body = f"{_reasoning(rules, reasoning_close)} {body}"
    return "\n".join([f"start: {body}", *rules.lines])


def _of_object(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object also where it does not say so."""
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise UnenforceableError(
            f"tool {name!r}: its parameters are of type {kinds!r:.80}; arguments are an object"
        )
    return {**schema, "type": "object"}


def _layout(name: str, terms: GrammarTerms) -> _Layout:
    nothing = _literal("")
    if name == "hermes":
        return _Layout(nothing, _literal("\n"), nothing, _hermes_call)
    if name == "qwen3_coder":
        return _Layout(nothing, _literal("\n"), nothing, _xml_call)
    if name == "llama3_json":
        return _Layout(nothing, _literal("; "), nothing, _object_call("parameters"))
    if name == "json":
        return _Layout(nothing, _literal("\n"), nothing, _object_call("arguments"))
    if name == "pythonic":
        return _Layout(_literal("["), _literal(", "), _literal("]"), _python_call)
    assert name == "mistral", name
    if terms.is_special("[ARGS]"):
        return _Layout(nothing, nothing, nothing, _apart_call)
    before = f"{terms.marker('[TOOL_CALLS]')} {_literal('[')}"
    return _Layout(before, _literal(", "), _literal("]"), _object_call("arguments"))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _reasoning(rules: _Rules, close: str) -> str:
    if rules.terms.is_special(close):
        return f"/(?s:.*)/ {rules.terms.marker(close)}"
    return rules.add("/(?s:.*)/", f"[suffix={_literal(close)}]") + f" {_literal(chr(10) * 2)}"


def _object_call(key: str) -> Call:
    def write(rules: _Rules, name: str, schema: Mapping[str, Any]) -> str:
        head = f'{{"name": {_literal(name)}, "{key}": '
        return f"{_literal(head)} {rules.arguments(schema)} {_literal('}')}"

    return write


def _hermes_call(rules: _Rules, name: str, schema: Mapping[str, Any]) -> str:
    before, after = rules.terms.marker("<tool_call>"), rules.terms.marker("</tool_call>")
    line, call = _literal("\n"), _object_call("arguments")(rules, name, schema)
    return f"{before} {line} {call} {line} {after}"


def _apart_call(rules: _Rules, name: str, schema: Mapping[str, Any]) -> str:
    marker = rules.terms.marker
    head = f"{marker('[TOOL_CALLS]')} {_literal(name)} {marker('[ARGS]')}"
    return f"{head} {rules.arguments(schema)}"


def _python_call(rules: _Rules, name: str, schema: Mapping[str, Any]) -> str:
    required, optional = _parameters(name, schema)
    for key in (*required, *optional):
        if not _KEYWORD.fullmatch(key):
            raise UnenforceableError(
                f"tool {name!r}: parameter {key[:64]!r} is no keyword in Python, which this "
                "model's calls are written in"
            )
    one = {
        key: f"{_literal(key + '=')} {rules.add(rules.terms.json(inner))}"
        for key, inner in {**required, **optional}.items()
    }
    comma = _literal(", ")
    tails = [f"({comma} {one[key]})?" for key in optional]
    if required:
        written = f" {comma} ".join(one[key] for key in required)
        body = " ".join([written, *tails])
    elif optional:
        # Whichever of them comes first has no comma before it.
        firsts = [" ".join([one[key], *tails[i + 1 :]]) for i, key in enumerate(optional)]
        body = f"({' | '.join(firsts)})?"
    else:
        body = ""
    return f"{_literal(name + '(')} {body} {_literal(')')}"


def _xml_call(rules: _Rules, name: str, schema: Mapping[str, Any]) -> str:
    required, optional = _parameters(name, schema)
    marker = rules.terms.marker
    head = _literal(f"\n<function={name}>\n")
    parts = [marker("<tool_call>"), head]
    for key, inner in {**required, **optional}.items():
        begin = _literal(f"<parameter={key}>\n")
        parameter = f"{begin} {_xml_value(rules, name, key, inner)}"
        parts.append(f"({parameter})" if key in required else f"({parameter})?")
    return " ".join([*parts, _literal("</function>\n"), marker("</tool_call>")])


def _xml_value(rules: _Rules, name: str, key: str, schema: dict[str, Any]) -> str:
    """A term for a parameter's bare text and its closing tag."""
    end = "\n</parameter>\n"
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    types = json_types(schema, schema)
    if types and "string" not in types:
        return f"{rules.add(rules.terms.json(schema))} {_literal(end)}"
    if choices is not None:
        texts = [c if isinstance(c, str) else json.dumps(c) for c in choices]
        return f"({' | '.join(_literal(text) for text in texts)}) {_literal(end)}"
    limits = [keyword for keyword in _TEXT_LIMITS if keyword in schema]
    if limits:
        raise UnenforceableError(
            f"tool {name!r}: {limits[0]} of parameter {key[:64]!r} cannot be enforced in the bare "
            "text that this model's calls hold"
        )
    return rules.add("/(?s:.*)/", f"[suffix={_literal(end)}]")


def _parameters(
    name: str, schema: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Required and optional parameters with their schemas, each with the definitions it may use."""
    schema = _bare(schema)
    foreign = sorted(set(schema) - _SEPARABLE)
    properties: Mapping[str, Any] = schema.get("properties") or {}
    missing = set(schema.get("required") or ()) - set(properties)
    if foreign or missing:
        what = foreign[0] if foreign else f"required parameter {min(missing)[:64]!r}"
        raise UnenforceableError(
            f"tool {name!r}: {what} of its parameters cannot be enforced in this model's calls"
        )
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    whole = {
        key: {**shared, **(inner if isinstance(inner, dict) else {})}
        for key, inner in properties.items()
    }
    needed = set(schema.get("required") or ())
    return (
        {key: inner for key, inner in whole.items() if key in needed},
        {key: inner for key, inner in whole.items() if key not in needed},
    )


def _bare(schema: Any) -> Any:
    """A schema without its annotations, which may be most of its text."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED:
            kept[key] = {name: _bare(inner) for name, inner in value.items()}
        elif key in _LISTS:
            kept[key] = [_bare(inner) for inner in value]
        elif key not in _ANNOTATIONS:
            kept[key] = _bare(value) if key in _ONE else value
    return kept
