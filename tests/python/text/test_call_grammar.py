"""Grammars of forced calls: whatever they admit is read as calls that fit the tools' schemas."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
from answer_transcripts import reading_of
from tokenizers import decoders, models, pre_tokenizers

from astrai.structured import Grammar, GrammarCompiler, schema_rule
from astrai.text import Tokenizer
from astrai.text.answer import TOOL_FORMATS, AnswerReading, AnswerSplitter
from astrai.text.answer.call_grammar import GrammarTerms, UnenforceableError, call_grammar

TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
            "unit": {"enum": ["C", "F"]},
            "near": {"$ref": "#/$defs/near"},
            "description": {"type": "boolean", "description": "of ::= " * 9, "title": "t"},
        },
        "required": ["city"],
        "$defs": {"near": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    },
    "write-file": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "mode": {"type": ["integer", "null"]}},
    },
    "now": {"type": "object", "properties": {}},
}
SPECIALS = ["<end>", "[TOOL_CALLS]", "[ARGS]", "[/THINK]"]
# What ends a free text, so that a random walk comes to an end.
CLOSERS = ("\n</parameter>\n", "</think>")


def make_tokenizer(specials: list[str]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: idx for idx, character in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    return Tokenizer(backend)


class Walker:
    """Answers drawn at random from what a grammar admits."""

    def __init__(self, specials: list[str]) -> None:
        self._tokenizer = make_tokenizer(specials)
        self._size = self._tokenizer.vocab_size
        self._compiler = GrammarCompiler(self._tokenizer, self._size)
        self._bytes = self._tokenizer.token_bytes()
        ids = {text: self._tokenizer.token_id(text) for text in specials}
        self.terms = GrammarTerms(
            schema_rule,
            lambda text: f"<[{ids[text]}]>" if text in ids else json.dumps(text),
            lambda text: text in ids,
        )

    def draw(self, grammar: str, rng: random.Random) -> str:
        """A whole answer, special tokens spelled."""
        compiled = self._compiler.compile(Grammar.lark(grammar))
        while True:
            text = self._walk(compiled.new_matcher(), rng)
            if text is not None:
                return text

    def admits(self, grammar: str, text: str) -> bool:
        matcher = self._compiler.compile(Grammar.lark(grammar)).new_matcher()
        ids = self._tokenizer.encode(text)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def _walk(self, matcher: Any, rng: random.Random) -> str | None:
        spelled = b""
        for _ in range(1500):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            chosen = self._choose(allowed.tolist(), spelled, rng)
            if chosen == self._size:
                return spelled.decode()
            assert matcher.consume_token(chosen)
            spelled += self._bytes[chosen]
        return None

    def _choose(self, allowed: list[int], spelled: bytes, rng: random.Random) -> int:
        if self._size in allowed and (len(allowed) == 1 or rng.random() < 0.6):
            return self._size
        specials = [i for i in allowed if i >= 256 and i != self._size]
        if specials and rng.random() < 0.5:
            return specials[0]
        wanted = b'"}])'
        for closer in CLOSERS:
            raw = closer.encode()
            n_there = max(n for n in range(len(raw)) if spelled.endswith(raw[:n]))
            if n_there or rng.random() < 0.1:
                wanted = raw[n_there : n_there + 1]
        near = [i for i in allowed if i != self._size and self._bytes[i] in wanted]
        if near and rng.random() < 0.8:
            return rng.choice(near)
        return rng.choice([i for i in allowed if i != self._size])


@pytest.fixture(scope="module")
def plain() -> Walker:
    return Walker(["<end>"])


@pytest.fixture(scope="module")
def special() -> Walker:
    return Walker(SPECIALS)


def read(format_name: str, text: str, **more: Any) -> list[tuple[str, Any]]:
    """The calls of an answer that holds nothing else."""
    base = reading_of(format_name, **more)
    reading = AnswerReading(base.tool_format, TOOLS, base.reasoning, base.is_reasoning)
    splitter = AnswerSplitter(reading)
    names: list[str] = []
    arguments: list[str] = []
    for event in splitter.feed(text) + splitter.end():
        kind = type(event).__name__
        assert kind in ("CallBegin", "CallArguments", "CallEnd", "ReasoningPiece"), (event, text)
        if kind == "CallBegin":
            names.append(event.name)  # type: ignore[union-attr, arg-type]
        elif kind == "CallArguments":
            arguments.append(event.text)  # type: ignore[union-attr]
    calls = list(zip(names, map(json.loads, arguments), strict=True))
    assert calls
    for name, value in calls:
        jsonschema.validate(value, TOOLS[name])
    return calls


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_what_is_admitted_is_read_as_valid_calls(plain: Walker, name: str, several: bool) -> None:
    grammar = call_grammar(name, TOOLS, plain.terms, several=several)
    rng = random.Random(7)
    counts = {len(read(name, plain.draw(grammar, rng))) for _ in range(25)}
    assert counts == {1} if not several else max(counts) > 1


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_one_tool_is_the_only_one(plain: Walker, name: str) -> None:
    grammar = call_grammar(name, {"now": TOOLS["now"]}, plain.terms, several=False)
    assert read(name, plain.draw(grammar, random.Random(1))) == [("now", {})]
    for text in ("Hello", "", " ", "{}", "[]"):
        assert not plain.admits(grammar, text)


@pytest.mark.parametrize(
    "name, text",
    [
        (
            "hermes",
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs\nlo\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        ),
        ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}'),
        ("pythonic", '[get_weather(city="Oslo", days=3), write-file(mode=null)]'),
        ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
        ("json", '{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
    ],
)
def test_a_family_s_usual_layout_is_admitted(plain: Walker, name: str, text: str) -> None:
    assert plain.admits(call_grammar(name, TOOLS, plain.terms, several=True), text)
    assert read(name, text)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_an_answer_may_be_a_text_in_place_of_calls(plain: Walker, name: str) -> None:
    text = plain.terms.json({"type": "array", "items": {"type": "integer"}})
    grammar = call_grammar(name, TOOLS, plain.terms, several=True, text=text)
    assert plain.admits(grammar, "[1,2]") and not plain.admits(grammar, '["a"]')
    call = plain.draw(call_grammar(name, TOOLS, plain.terms, several=True), random.Random(4))
    assert plain.admits(grammar, call) and not plain.admits(grammar, call + "[1]")


@pytest.mark.parametrize(
    "schema, accepted, refused",
    [
        ({"properties": {"a": {"type": "integer"}}}, '{"a":1}', "5"),
        ({"anyOf": [{"type": "integer"}, {"properties": {}}]}, '{"b":[]}', "5"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"b":1}', '{"b":"x"}'),
        ({"type": "object", "additionalProperties": True}, '{"b":{"c":null}}', "[]"),
        ({"type": ["object", "null"]}, "{}", "null"),
        ({"required": ["b"]}, '{"b":[1]}', "{}"),
        ({"properties": {"a": {"type": "null"}}, "required": ["b"]}, '{"b":1}', '{"c":1,"b":1}'),
        ({}, "{}", '{"b":1}'),
    ],
)
def test_arguments_are_an_object_whatever_the_schema_admits(
    plain: Walker, schema: dict[str, Any], accepted: str, refused: str
) -> None:
    grammar = call_grammar("json", {"f": schema}, plain.terms, several=False)
    call = '{"name": "f", "arguments": %s}'
    assert plain.admits(grammar, call % accepted)
    assert not plain.admits(grammar, call % refused)


def test_markers_that_are_tokens_are_written_as_tokens(special: Walker) -> None:
    grammar = call_grammar("mistral", TOOLS, special.terms, several=True)
    rng = random.Random(3)
    for _ in range(10):
        text = special.draw(grammar, rng)
        assert text.startswith("[TOOL_CALLS]") and "[ARGS]" in text
        read("mistral", text)


@pytest.mark.parametrize("tags, close", [("think", "</think>"), ("mistral", "[/THINK]")])
def test_reasoning_that_the_prompt_opened_comes_first(
    special: Walker, tags: str, close: str
) -> None:
    grammar = call_grammar("hermes", TOOLS, special.terms, several=False, reasoning_close=close)
    rng = random.Random(5)
    for _ in range(5):
        text = special.draw(grammar, rng)
        assert close in text
        read("hermes", text, reasoning=tags, is_reasoning=True)


@pytest.mark.parametrize(
    "name, schema, word",
    [
        ("hermes", {"type": "array"}, "array"),
        ("json", {"type": ["string", "null"]}, "string"),
        ("pythonic", {"properties": {"a b": {}}}, "'a b'"),
        ("pythonic", {"anyOf": [{"required": ["a"]}]}, "anyOf"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "x"}}}, "pattern"),
        ("qwen3_coder", {"required": ["a"]}, "'a'"),
    ],
)
def test_what_a_form_cannot_express_is_refused_by_name(
    plain: Walker, name: str, schema: dict[str, Any], word: str
) -> None:
    with pytest.raises(UnenforceableError, match=f"tool 'f'.*{word}"):
        call_grammar(name, {"f": schema}, plain.terms, several=False)
