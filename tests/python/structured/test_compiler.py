"""Compiling: within limits, whatever is sent; found again; fit to be shared."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from test_schema_answers import TOKENIZER

from astrai.structured import (
    Grammar,
    GrammarBusyError,
    GrammarCompiler,
    GrammarError,
    GrammarLimits,
)


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(TOKENIZER, 300)
    yield compiler
    compiler.close()


def rules(n: int, rule: str, last: str) -> str:
    return "\n".join(rule.format(i, i + 1) for i in range(n)) + "\n" + last.format(n)


def array(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


EXPENSIVE = {
    "a stack of rules": Grammar.lark(rules(3000, 'r{0}: r{1} "y"', 'r{0}: "x"\nstart: r0')),
    "a doubling of terminals": Grammar.lark(rules(40, "R{0}: R{1} R{1}", 'R{0}: "x"\nstart: R0')),
    "a million copies": Grammar.regex("(ab?){1000000}"),
    "multiples of a large number": Grammar.json_schema({"multipleOf": 1234567, "type": "integer"}),
    "nested counts": Grammar.regex(r"((\w{1,1000}){1,1000}){1,1000}"),
    "a pattern of nested counts": Grammar.json_schema({"pattern": "((a{1,99}b?){1,99}){1,99}"}),
}
REFUSED = {
    "deep parentheses": Grammar.regex("(" * 5000 + "a" + ")" * 5000),
    "a deep rule": Grammar.lark("start: " + "(" * 5000 + '"a"' + ")" * 5000),
    "a deep schema": Grammar.json_schema(array(65)),
    "a long text": Grammar.regex("a" * 70_000),
    "rules in a circle": Grammar.lark("start: a\na: b\nb: a"),
    "references in a circle": Grammar.json_schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_what_is_expensive_is_refused_or_compiled_and_the_next_one_works(
    compiler: GrammarCompiler, name: str
) -> None:
    try:
        compiler.compile(EXPENSIVE[name])
    except GrammarError as error:
        assert "CPU time" in str(error) or "does not compile" in str(error)
    compiler.compile(Grammar.regex(f"fine after {name}"))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(REFUSED[name])
    assert 10 < len(str(caught.value)) < 500


def test_a_grammar_is_compiled_once(compiler: GrammarCompiler) -> None:
    grammar = Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(compiler.compile(grammar))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1 and len(found) == 8


def test_refusals_are_remembered(compiler: GrammarCompiler) -> None:
    errors = []
    for _ in range(2):
        with pytest.raises(GrammarError) as caught:
            compiler.compile(Grammar.regex("(unclosed"))
        errors.append(caught.value)
    assert errors[0] is errors[1]


def test_the_oldest_grammars_are_forgotten() -> None:
    compiler = GrammarCompiler(TOKENIZER, 300)
    first = compiler.compile(Grammar.choice(["a", "b"]))
    for i in range(200):
        compiler.compile(Grammar.choice([f"option {i}"]))
    assert compiler.compile(Grammar.choice(["a", "b"])) is not first
    compiler.close()


def test_a_closed_compiler_is_busy() -> None:
    compiler = GrammarCompiler(TOKENIZER, 300)
    compiler.compile(Grammar.regex("a"))
    compiler.close()
    compiler.close()
    with pytest.raises(GrammarBusyError, match="shutting down"):
        compiler.compile(Grammar.regex("b"))


def test_limits_are_those_given() -> None:
    compiler = GrammarCompiler(TOKENIZER, 300, GrammarLimits(max_bytes=10, max_depth=1))
    with pytest.raises(GrammarError, match="11 bytes; at most 10"):
        compiler.compile(Grammar.regex("a" * 11))
    with pytest.raises(GrammarError, match="deeper than 1"):
        compiler.compile(Grammar("json_schema", '{"not":{}}'))
    compiler.close()
