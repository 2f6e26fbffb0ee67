"""A grammar's text in the form that llguidance reads."""

from __future__ import annotations

import json
from typing import Any

from astrai.structured.grammar import Grammar, GrammarError
from astrai.structured.schema_subset import check_schema

__all__ = ["grammar_rule", "schema_rule", "source_of"]

# Whitespace between the tokens of JSON: what indented JSON needs, and no more. A model in a loop
# could otherwise fill its answer with blank lines.
_WHITESPACE = r"\n?[ \t]{0,20}"
_JSON_OPTIONS = {"whitespace_pattern": _WHITESPACE, "lenient": False, "coerce_one_of": False}


def source_of(grammar: Grammar, max_depth: int) -> str:
    """The text for `llguidance.LLMatcher`. Raises GrammarError, most often for a schema."""
    import llguidance

    kind, text = grammar.kind, grammar.text
    if kind == "json_schema":
        schema = _loads(text, "schema")
        check_schema(schema, max_depth)
        return _json_source(text if isinstance(schema, dict) else _boolean(schema))
    if kind == "json_object":
        return _json_source('{"type":"object"}')
    _check_text(text, kind)
    if kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        return llguidance.LLMatcher.grammar_from_lark(_choice_source(text))
    if kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(_lark_source(text))
    raise GrammarError(f"unknown kind of grammar {kind!r}")


def schema_rule(schema: dict[str, Any]) -> str:
    """A schema as a term of a Lark grammar, for grammars that put text around JSON. The schema is
    checked by nobody then: call `check_schema` first."""
    return f"%json {_json_with_options(json.dumps(schema))}"


def grammar_rule(grammar: Grammar, max_depth: int) -> str | None:
    """A whole grammar as the body of a rule, for grammars in which it is one way among others. None
    for Lark, whose rules have names of their own. Raises GrammarError as `source_of`."""
    import llguidance

    kind, text = grammar.kind, grammar.text
    if kind == "json_object":
        return schema_rule({"type": "object"})
    if kind == "json_schema":
        schema = _loads(text, "schema")
        check_schema(schema, max_depth)
        return schema_rule(schema if isinstance(schema, dict) else json.loads(_boolean(schema)))
    if kind == "regex":
        _check_text(text, kind)
        source = llguidance.LLMatcher.grammar_from_regex(text)  # it knows how to quote one
        return str(json.loads(source)["grammars"][0]["lark_grammar"]).removeprefix(_START)
    return _choice_source(text).removeprefix(_START) if kind == "choice" else None


_START = "start: "


def _boolean(schema: bool) -> str:
    """The text of an object schema that admits everything, or nothing."""
    return "{}" if schema else '{"enum":[]}'


def _json_source(schema_text: str) -> str:
    import llguidance

    options: Any = _JSON_OPTIONS
    return llguidance.LLMatcher.grammar_from_json_schema(schema_text, overrides=options)


def _json_with_options(schema_text: str) -> str:
    schema = json.loads(schema_text)
    return json.dumps({**schema, "x-guidance": _JSON_OPTIONS})


def _choice_source(text: str) -> str:
    options = _loads(text, "choice")
    if not isinstance(options, list) or not options:
        raise GrammarError("choice must be a list of at least one string")
    for option in options:
        if not isinstance(option, str) or not option:
            raise GrammarError(f"choice must hold non-empty strings, got {option!r:.80}")
        _check_text(option, "choice")
    return _START + " | ".join(json.dumps(option, ensure_ascii=False) for option in options)


def _lark_source(text: str) -> str:
    """GBNF, which defines with ::=, is rewritten; Lark stays as it is."""
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:  # it raises its own error, RecursionError and others
        raise GrammarError(f"the grammar is not GBNF: {error!s:.200}") from None


def _loads(text: str, name: str) -> Any:
    _check_text(text, name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{name} is not JSON: {error}") from None


def _check_text(text: str, name: str) -> None:
    if not text.strip():
        raise GrammarError(f"{name} is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"{name} holds a lone surrogate, which is not valid Unicode") from None
    if "\0" in text:
        raise GrammarError(f"{name} holds a NUL character")
