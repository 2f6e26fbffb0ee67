"""The fields for structured output: each becomes its grammar, and what is wrong is a 400."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_engine import FakeEngine
from live_server import Live

from astrai.server import ServerSettings, engine_link
from astrai.structured import Grammar

CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
BODY: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    MESSAGES: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2},
}
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
OF_SCHEMA = Grammar.json_schema(SCHEMA)
STRICT = {"name": "thing", "strict": True, "schema": SCHEMA}

OPENAI_FIELDS = [
    ({"response_format": {"type": "json_schema", "json_schema": STRICT}}, OF_SCHEMA),
    ({"response_format": {"type": "json_object"}}, Grammar.json_object()),
    ({"response_format": {"type": "text"}}, None),
    ({"guided_json": SCHEMA}, OF_SCHEMA),
    ({"guided_json": '{"type": "string"}'}, Grammar.json_schema({"type": "string"})),
    ({"guided_regex": "[ab]+"}, Grammar.regex("[ab]+")),
    ({"guided_grammar": 'root ::= "a"'}, Grammar.lark('root ::= "a"')),
    ({"guided_choice": ["yes", "no"]}, Grammar.choice(["yes", "no"])),
    ({"structured_outputs": {"json": SCHEMA}}, OF_SCHEMA),
    ({"structured_outputs": {"regex": "[ab]+"}}, Grammar.regex("[ab]+")),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar.lark('start: "a"')),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, Grammar.choice(["yes", "no"])),
    ({"structured_outputs": {"json_object": True}}, Grammar.json_object()),
    ({"structured_outputs": {"json_object": False}}, None),
    ({"structured_outputs": {}, "guided_json": None}, None),
]
FIELDS = [
    *[(path, field, grammar) for path in (CHAT, COMPLETIONS) for field, grammar in OPENAI_FIELDS],
    *[
        (MESSAGES, field, OF_SCHEMA)
        for field in (
            {
                "output_config": {
                    "effort": "low",
                    "format": {"type": "json_schema", "schema": SCHEMA},
                }
            },
            {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        )
    ],
    (MESSAGES, {"output_config": {"effort": "low"}}, None),
]


@pytest.mark.parametrize("path, field, grammar", FIELDS, ids=lambda v: str(v)[:60])
def test_a_field_becomes_its_grammar(
    live: Live, path: str, field: dict[str, Any], grammar: Grammar | None
) -> None:
    response = live.post(path, {**BODY[path], **field})
    assert response.status_code == 200, response.text
    assert [request.grammar for request in live.engine.client.requests] == [grammar]  # type: ignore[union-attr]


def test_every_choice_of_a_request_has_the_grammar(live: Live) -> None:
    response = live.post(CHAT, {**BODY[CHAT], "n": 3, "guided_regex": "[ab]+"})
    assert response.status_code == 200, response.text
    requests = live.engine.client.requests  # type: ignore[union-attr]
    assert [request.grammar for request in requests] == [Grammar.regex("[ab]+")] * 3


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def json_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


REFUSED = [
    (CHAT, json_schema(None), "json_schema.schema is missing"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "json_schema.schema is missing"),
    (CHAT, json_schema({"uniqueItems": True}), "'uniqueItems' at # is not supported"),
    (CHAT, json_schema({"properties": {"a/b": {"not": {}}}}), "'not' at #/properties/a~1b"),
    (CHAT, json_schema({"$ref": "#/$defs/x"}), "$ref at # names '#/$defs/x'"),
    (CHAT, json_schema({"$ref": "https://example.com/x"}), "$ref at #"),
    (CHAT, json_schema({"$ref": "#"}), "none at all"),
    (CHAT, json_schema({"type": None}), "type at # must be"),
    (CHAT, json_schema({"items": None}), "items at # must be"),
    (CHAT, json_schema({"enum": []}), "enum at # must be"),
    (CHAT, json_schema({"x-guidance": {"lenient": True}}), "'x-guidance'"),
    (CHAT, json_schema({"type": "integer", "minimum": 5, "maximum": 1}), "does not compile"),
    (CHAT, json_schema(nested(80)), "nested deeper than 64"),
    (CHAT, json_schema({"description": "x" * 70_000}), "bytes"),
    (CHAT, json_schema({"pattern": "(?=a)"}), "look-ahead"),
    (CHAT, {"guided_regex": "("}, "unclosed group"),
    (CHAT, {"guided_regex": ""}, "empty"),
    (CHAT, {"guided_regex": "(" * 5000 + "a" + ")" * 5000}, "regex"),
    (CHAT, {"guided_grammar": "nonsense ("}, "guided_grammar"),
    (CHAT, {"guided_json": "{"}, "not valid JSON"),
    (CHAT, {"guided_json": "7"}, "object or a boolean"),
    (CHAT, {"guided_choice": [""]}, "non-empty"),
    (CHAT, {"structured_outputs": {"structural_tag": {}}}, "structural_tag"),
    (CHAT, {"guided_regex": "a", "guided_choice": ["a"]}, "exclude each other"),
    (CHAT, {"guided_regex": "a", **json_schema({})}, "exclude each other"),
    (COMPLETIONS, {"guided_json": {"contains": {}}}, "'contains'"),
    (MESSAGES, {"output_format": {"type": "json_schema"}}, "output_format.schema is missing"),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {"if": 1}}}}, "'if'"),
]


@pytest.mark.parametrize("path, bad, message", REFUSED, ids=lambda v: str(v)[:60])
def test_what_cannot_be_enforced_is_400_before_anything_runs(
    live: Live, path: str, bad: dict[str, Any], message: str
) -> None:
    response = live.post(path, {**BODY[path], **bad})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert not live.engine.client.requests  # type: ignore[union-attr]
    assert live.http.get("/health").status_code == 200


WRONG = [
    (CHAT, {"guided_json": 5}),
    (CHAT, {"guided_regex": 5}),
    (CHAT, {"guided_choice": "yes"}),
    (CHAT, {"guided_choice": []}),
    (CHAT, {"guided_choice": [1]}),
    (CHAT, {"structured_outputs": "json"}),
    (CHAT, json_schema([])),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}}),
    (MESSAGES, {"output_format": {"type": "json_object"}}),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": "x"}}}),
]


@pytest.mark.parametrize("path, bad", WRONG, ids=lambda v: str(v)[:60])
def test_wrong_types_are_422(live: Live, path: str, bad: dict[str, Any]) -> None:
    assert live.post(path, {**BODY[path], **bad}).status_code == 422


def test_a_first_grammar_is_compiled_once_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_link, "_WARM_UP_S", 0.01)
    engine = FakeEngine()
    compiled: list[Grammar] = []
    monkeypatch.setattr(engine.client, "compile_grammar", compiled.append)
    busy = iter([1, 1, 0])
    monkeypatch.setattr(engine.client, "stats", lambda: {"active_tasks": next(busy)})

    async def warm() -> None:
        link = engine_link.EngineLink(engine, ServerSettings())  # type: ignore[arg-type]
        await link.warm_grammars()
        link.close()

    asyncio.run(warm())
    assert compiled == [Grammar.json_object()] and next(busy, None) is None
