"""Tool calls and reasoning in both protocols, read by the official clients."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from fake_engine import FakeEngine, FakeScript
from live_server import Live
from tool_servers import ANSWERS, CITY, TEMPLATES, WITH_TEXT

from astrai.cli.options import server_options
from astrai.text.answer import REASONING_FORMATS, TOOL_FORMATS

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
HELLO = [{"role": "user", "content": "Hello"}]
PARAMETERS = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}},
    "now": {"type": "object", "properties": {}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in PARAMETERS.items()
]
CLAUDE_TOOLS: Any = [
    {"name": name, "input_schema": parameters} for name, parameters in PARAMETERS.items()
]
THOUGHT = "<think>\nWhich one? <tool_call>?\n</think>\n\n"


@pytest.fixture(scope="session")
def _servers(start_server: Callable[..., Live]) -> Callable[..., Live]:
    started: dict[tuple[Any, ...], Live] = {}

    def get(template: str, **flags: Any) -> Live:
        key = (template, *sorted(flags.items()))
        if key not in started:
            engine = FakeEngine(template=TEMPLATES[template], max_seq_len=4000)
            started[key] = start_server(engine, **flags)
        return started[key]

    return get


@pytest.fixture
def serving(_servers: Callable[..., Live]) -> Callable[..., Live]:
    """A function: the server of a template whose model gives one answer and ends."""

    def get(template: str, answer: str = "", **flags: Any) -> Live:
        server = _servers(template, **flags)
        engine = server.engine
        assert engine is not None
        script = FakeScript(text=answer or "x", ends_after=len(answer.encode()))
        engine.script = engine.client.script = script
        engine.client.requests.clear()
        return server

    return get


def ask(live: Live, **body: Any) -> dict[str, Any]:
    response = live.post(CHAT, {"messages": HELLO, "tools": TOOLS, **body})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def prompt_of(live: Live) -> str:
    engine = live.engine
    assert engine is not None and engine.tokenizer is not None
    ids = engine.client.requests[-1].prompt_ids
    return engine.tokenizer.decode(ids, skip_special_tokens=False)


def chunks_of(raw: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]


@pytest.fixture
def oai() -> Iterator[Callable[[Live], openai.OpenAI]]:
    clients: list[openai.OpenAI] = []

    def make(live: Live) -> openai.OpenAI:
        clients.append(openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def claude() -> Iterator[Callable[[Live], anthropic.Anthropic]]:
    clients: list[anthropic.Anthropic] = []

    def make(live: Live) -> anthropic.Anthropic:
        clients.append(anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


# ---- every family


@pytest.mark.parametrize("family", ANSWERS)
def test_openai_calls_of_every_family_streamed_and_not(
    serving: Callable[..., Live], oai: Callable[[Live], openai.OpenAI], family: str
) -> None:
    client = oai(serving(family, ANSWERS[family]))
    whole = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)  # type: ignore[arg-type]
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == ("Let me see." if family in WITH_TEXT else None)
    calls = choice.message.tool_calls
    assert calls is not None
    read = [(c.function.name, json.loads(c.function.arguments)) for c in calls]  # type: ignore[union-attr]
    assert read == [("get_weather", {"city": CITY}), ("now", {})]
    assert len({call.id for call in calls}) == 2

    with client.chat.completions.stream(model="m", messages=HELLO, tools=TOOLS) as stream:  # type: ignore[arg-type]
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.content == choice.message.content
    assert [(c.function.name, c.function.arguments) for c in streamed.message.tool_calls or ()] == [
        (c.function.name, c.function.arguments)  # type: ignore[union-attr]
        for c in calls
    ]


@pytest.mark.parametrize("family", ANSWERS)
def test_anthropic_calls_of_every_family_streamed_and_not(
    serving: Callable[..., Live], claude: Callable[[Live], anthropic.Anthropic], family: str
) -> None:
    client = claude(serving(family, ANSWERS[family]))
    asked: Any = {"model": "m", "messages": HELLO, "tools": CLAUDE_TOOLS, "max_tokens": 900}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use"
        blocks = [block for block in message.content if block.type == "tool_use"]
        assert [(b.name, b.input) for b in blocks] == [("get_weather", {"city": CITY}), ("now", {})]
        assert len({b.id for b in blocks}) == 2 and message.content[-1].type == "tool_use"
        texts = [block.text for block in message.content if block.type == "text"]
        assert texts == (["Let me see."] if family in WITH_TEXT else [])


# ---- shapes


@pytest.mark.parametrize("delay_s", [0.0, 0.001], ids=["piled-up", "one-by-one"])
def test_an_openai_stream_of_calls_has_openai_s_shapes(
    serving: Callable[..., Live], delay_s: float
) -> None:
    live = serving("hermes", THOUGHT + ANSWERS["hermes"])
    live.script.delay_s = delay_s
    chunks = chunks_of(live.stream(CHAT, {"messages": HELLO, "tools": TOOLS}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    kinds = [next(iter(delta), "") for delta in deltas[1:]]
    order = [kind for i, kind in enumerate(kinds) if not i or kinds[i - 1] != kind]
    assert order == ["reasoning_content", "content", "tool_calls", ""]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Which one? <tool_call>?"
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    for call in calls:
        assert call.pop("id", "call_").startswith("call_")
    arguments = {"arguments": '{"city": "Oslo é \\"}]"}'}
    assert calls == [
        {"index": 0, "type": "function", "function": {"name": "get_weather", "arguments": ""}},
        {"index": 0, "function": arguments},
        {"index": 1, "type": "function", "function": {"name": "now", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("delay_s", [0.0, 0.001], ids=["piled-up", "one-by-one"])
def test_an_anthropic_stream_has_its_blocks_in_order(
    serving: Callable[..., Live], delay_s: float
) -> None:
    live = serving("hermes", THOUGHT + ANSWERS["hermes"])
    live.script.delay_s = delay_s
    raw = live.stream(MESSAGES, {"messages": HELLO, "tools": CLAUDE_TOOLS, "max_tokens": 900})
    events = chunks_of(raw)
    told: list[tuple[str, Any, Any]] = []
    for event in events:
        kind = event.get("delta", event.get("content_block", {})).get("type")
        entry = (event["type"], event.get("index"), kind)
        if not told or told[-1] != entry:
            told.append(entry)
    delta, start, stop = "content_block_delta", "content_block_start", "content_block_stop"
    assert told == [
        ("message_start", None, None),
        (start, 0, "thinking"),
        (delta, 0, "thinking_delta"),
        (delta, 0, "signature_delta"),
        (stop, 0, None),
        (start, 1, "text"),
        (delta, 1, "text_delta"),
        (stop, 1, None),
        (start, 2, "tool_use"),
        (delta, 2, "input_json_delta"),
        (stop, 2, None),
        (start, 3, "tool_use"),
        (delta, 3, "input_json_delta"),
        (stop, 3, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    starts = [event["content_block"] for event in events if event["type"] == start]
    deltas = [event["delta"] for event in events if event["type"] == delta]
    thinking = "".join(piece.get("thinking", "") for piece in deltas)
    assert thinking == "Which one? <tool_call>?"
    signatures = [piece["signature"] for piece in deltas if "signature" in piece]
    assert signatures == [hashlib.sha256(thinking.encode()).hexdigest()]
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert starts[2]["input"] == {} and starts[2]["id"].startswith("toolu_")
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert raw.endswith("data: [DONE]\n\n")


def test_a_thinking_block_survives_the_round_trip(
    serving: Callable[..., Live], claude: Callable[[Live], anthropic.Anthropic]
) -> None:
    live = serving("hermes", THOUGHT + ANSWERS["hermes"])
    asked: Any = {"model": "m", "tools": CLAUDE_TOOLS, "max_tokens": 900}
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    message = claude(live).messages.create(messages=HELLO, thinking=thinking, **asked)  # type: ignore[arg-type]
    thought, _, call, _ = message.content
    assert thought.type == "thinking" and thought.thinking == "Which one? <tool_call>?"
    assert thought.signature and call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 degrees"}
    turns: Any = [*HELLO, message.to_param(), {"role": "user", "content": [result]}]
    claude(live).messages.create(messages=turns, **asked)
    prompt = prompt_of(live)
    assert "(Which one? <tool_call>?)Let me see." in prompt
    assert f"CALL {call.id} get_weather" in prompt and f"4 degrees FOR {call.id}" in prompt


def test_choices_and_logprobs_stay_whole_beside_calls(serving: Callable[..., Live]) -> None:
    live = serving("hermes", ANSWERS["hermes"])
    options: dict[str, Any] = {"n": 2, "logprobs": True, "return_token_ids": True}
    body = {"messages": HELLO, "tools": TOOLS, **options}
    plain = live.post(CHAT, body).json()["choices"]
    ids: list[list[int]] = [[], []]
    entries: list[list[Any]] = [[], []]
    for chunk in chunks_of(live.stream(CHAT, body)):
        choice = chunk["choices"][0]
        ids[choice["index"]] += choice.get("token_ids", [])
        entries[choice["index"]] += (choice.get("logprobs") or {}).get("content", [])
    for i in range(2):
        assert ids[i] == plain[i]["token_ids"]
        assert entries[i] == plain[i]["logprobs"]["content"]
    called = [call["id"] for choice in plain for call in choice["message"]["tool_calls"]]
    assert len(set(called)) == 4


# ---- faults


@pytest.mark.parametrize(
    "answer, fault",
    [
        (
            '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
            {"reason": "unknown_tool", "name": "rm"},
        ),
        ("<tool_call>now()</tool_call>", {"reason": "malformed", "name": None}),
        ('<tool_call>{"name": "now", "argu', {"reason": "truncated", "name": None}),
    ],
)
def test_what_is_no_call_stays_text_and_is_flagged(
    serving: Callable[..., Live],
    caplog: pytest.LogCaptureFixture,
    answer: str,
    fault: dict[str, Any],
) -> None:
    live = serving("hermes", answer)
    before = live.http.get("/stats").json()["total_tool_call_faults"].get(fault["reason"], 0)
    with caplog.at_level(logging.WARNING, logger="astrai.server"):
        choice = ask(live)
    assert choice["message"]["content"] == answer and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop" and choice["tool_call_faults"] == [fault]
    assert fault["reason"] in caplog.text and "argu" not in caplog.text

    last = chunks_of(live.stream(CHAT, {"messages": HELLO, "tools": TOOLS}))[-2]["choices"][0]
    assert (last["finish_reason"], last["tool_call_faults"]) == ("stop", [fault])
    body = {"messages": HELLO, "tools": CLAUDE_TOOLS}
    message = live.post(MESSAGES, body).json()
    assert message["content"] == [{"type": "text", "text": answer}]
    assert (message["stop_reason"], message["tool_call_faults"]) == ("end_turn", [fault])
    raw = live.stream(MESSAGES, body)
    assert chunks_of(raw)[-2]["tool_call_faults"] == [fault]
    after = live.http.get("/stats").json()["total_tool_call_faults"][fault["reason"]]
    assert after == before + 4
    labels = f'model_name="astrai",reason="{fault["reason"]}"'
    metric = f"astrai_tool_call_faults_total{{{labels}}} {after:.1f}"
    assert metric in live.http.get("/metrics").text


@pytest.mark.parametrize("limit", range(1, 60, 7))
def test_a_cut_off_call_never_reaches_the_client(serving: Callable[..., Live], limit: int) -> None:
    live = serving("hermes", ANSWERS["hermes"])
    choice = ask(live, max_tokens=limit)
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
    text = ANSWERS["hermes"].encode()[:limit].decode(errors="ignore")
    assert choice["message"]["content"] == text


def test_an_input_beyond_json_libraries_is_passed_as_written(serving: Callable[..., Live]) -> None:
    wide = "9" * 40
    for value in (wide, "1e999", '"\\ud800"', '"a\u2028b"'):
        live = serving(
            "hermes",
            f'<tool_call>{{"name": "now", "arguments": {{"x": {value}}}}}</tool_call>',
        )
        response = live.post(MESSAGES, {"messages": HELLO, "tools": CLAUDE_TOOLS})
        assert response.status_code == 200 and response.json()["stop_reason"] == "tool_use"
        assert json.loads(ask(live)["message"]["tool_calls"][0]["function"]["arguments"]).keys()


# ---- what the request says


def test_one_call_where_one_is_wanted(serving: Callable[..., Live]) -> None:
    live = serving("hermes", ANSWERS["hermes"])
    assert len(ask(live, parallel_tool_calls=None)["message"]["tool_calls"]) == 2
    (call,) = ask(live, parallel_tool_calls=False)["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    body = {"messages": HELLO, "tools": CLAUDE_TOOLS, "tool_choice": choice}
    message = live.post(MESSAGES, body).json()
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]


def test_no_choice_no_call(serving: Callable[..., Live]) -> None:
    live = serving("hermes", ANSWERS["hermes"])
    for body in ({"tool_choice": "none"}, {"tools": None}, {"tools": []}):
        choice = ask(live, **body)
        assert choice["message"]["content"] == ANSWERS["hermes"]
        assert choice["finish_reason"] == "stop" and "TOOL" not in prompt_of(live)
    body = {"messages": HELLO, "tools": CLAUDE_TOOLS, "tool_choice": {"type": "none"}}
    assert live.post(MESSAGES, body).json()["stop_reason"] == "end_turn"


FORCED: Any = [
    ("required", {"type": "any"}, {"get_weather", "now"}),
    (
        {"type": "function", "function": {"name": "now"}},
        {"type": "tool", "name": "now"},
        {"now"},
    ),
]


@pytest.mark.parametrize("choice, claude_choice, names", FORCED)
def test_a_forced_call_is_a_grammar_of_the_model_s_own_form(
    serving: Callable[..., Live], choice: Any, claude_choice: Any, names: set[str]
) -> None:
    live = serving("hermes", ANSWERS["hermes"])
    client = live.engine.client  # type: ignore[union-attr]
    assert ask(live, tool_choice=choice)["finish_reason"] == "tool_calls"
    body = {"messages": HELLO, "tools": CLAUDE_TOOLS, "tool_choice": claude_choice}
    assert live.post(MESSAGES, body).json()["stop_reason"] == "tool_use"
    # The forced call goes before a form that is asked for the text.
    as_object = {"type": "json_object"}
    assert ask(live, tool_choice=choice, response_format=as_object)["message"]["tool_calls"]
    for request in client.requests:
        assert request.grammar is not None and request.grammar.kind == "lark"
        source = request.grammar.text
        assert "<tool_call>" in source
        assert {name for name in PARAMETERS if f'\\"{name}\\"' in source} == names
        assert (")*" in source) == (len(names) > 1)
    ask(live, tool_choice="auto")
    assert client.requests[-1].grammar is None


@pytest.mark.parametrize(
    "flags, body, param",
    [
        ({"tool_parser": "none"}, {}, "tool_choice"),
        ({}, {"tools": []}, "tool_choice"),
        ({}, {"tools": None}, "tool_choice"),
        (
            {},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"x": {"not": {}}}}},
                    }
                ]
            },
            "tools",
        ),
    ],
)
def test_what_cannot_be_forced_is_refused(
    serving: Callable[..., Live], flags: dict[str, Any], body: dict[str, Any], param: str
) -> None:
    live = serving("hermes", "Four.", **flags)
    asked = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", **body}
    response = live.post(CHAT, asked)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not live.engine.client.requests  # type: ignore[union-attr]


FORMS: Any = [
    ({"response_format": {"type": "json_object"}}, "response_format", '{"degrees":4}'),
    ({"guided_json": {"type": "integer"}}, "guided_json", "12"),
    ({"guided_regex": "a/b\n[0-9]é"}, "guided_regex", "a/b\n7é"),
    ({"guided_choice": ["yes", "nö"]}, "guided_choice", "nö"),
]


@pytest.mark.parametrize("body, param, text", FORMS)
@pytest.mark.parametrize("template", ["hermes", "llama3_json", "mistral"])
def test_tools_that_are_offered_beside_a_form_may_be_called(
    serving: Callable[..., Live], template: str, body: Any, param: str, text: str
) -> None:
    for answer, reason in ((ANSWERS[template], "tool_calls"), (text, "stop")):
        live = serving(template, answer)
        choice = ask(live, **body)
        assert choice["finish_reason"] == reason and "tool_call_faults" not in choice
        assert reason == "tool_calls" or choice["message"]["content"] == text
        client = live.engine.client  # type: ignore[union-attr]
        (request,) = client.requests
        assert request.grammar.kind == "lark" and "get_weather" in request.grammar.text
    ask(live, **body, tool_choice="none")
    assert client.requests[-1].grammar.kind != "lark"


def test_a_tool_whose_parameters_cannot_be_enforced_may_be_offered_beside_a_form(
    serving: Callable[..., Live],
) -> None:
    live = serving("hermes", '{"a":1}')
    function = {"name": "f", "parameters": {"type": "object", "minProperties": 1}}
    choice = ask(
        live,
        tools=[{"type": "function", "function": function}],
        response_format={"type": "json_object"},
    )
    assert choice["message"]["content"] == '{"a":1}'


def test_a_grammar_of_one_s_own_leaves_no_room_for_calls(serving: Callable[..., Live]) -> None:
    live = serving("hermes", ANSWERS["hermes"])
    choice = ask(live, guided_grammar='start: "x"')
    assert choice["message"]["content"] == ANSWERS["hermes"]


def test_two_tools_of_one_name_are_refused(serving: Callable[..., Live]) -> None:
    live = serving("hermes", "Four.")
    twice = {"tools": TOOLS + TOOLS[:1], "messages": HELLO}
    responses = {"tools": [{"type": "function", "name": "f"}] * 2, "input": "Hello"}
    for path, body in (
        (CHAT, twice),
        ("/tokenize", twice),
        (MESSAGES, {"tools": CLAUDE_TOOLS + CLAUDE_TOOLS[:1], "messages": HELLO}),
        ("/v1/responses", responses),
    ):
        response = live.post(path, body)
        assert response.status_code == 400, (path, response.text)
        assert "2 tools are named" in response.json()["error"]["message"]


def test_logprobs_of_held_back_text_reach_a_stream(serving: Callable[..., Live]) -> None:
    live = serving("hermes", "Four <tool, as they say <")
    body = {
        "input": "Hello",
        "tools": [{"type": "function", "name": "f"}],
        "include": ["message.output_text.logprobs"],
    }
    (message,) = live.post("/v1/responses", body).json()["output"]
    (part,) = message["content"]
    assert bytes(b for entry in part["logprobs"] for b in entry["bytes"]).decode() == part["text"]
    events = chunks_of(live.stream("/v1/responses", body))
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == part["logprobs"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    told = [entry for event in deltas for entry in event["logprobs"]]
    assert told == part["logprobs"][: len(told)] and len(told) >= len(part["text"])


@pytest.mark.parametrize(
    "setting, formats",
    [("tool_parser", TOOL_FORMATS), ("reasoning_parser", REASONING_FORMATS)],
)
def test_the_flags_name_every_format(setting: str, formats: dict[str, Any]) -> None:
    (option,) = (option for option in server_options() if option.field == setting)
    assert set(option.choices) == {"auto", "none", *formats}


def test_flags_choose_the_parsers(serving: Callable[..., Live]) -> None:
    answer = THOUGHT + ANSWERS["hermes"]
    live = serving("hermes", answer, tool_parser="none", reasoning_parser="none")
    assert ask(live)["message"]["content"] == answer
    assert "TOOL get_weather" in prompt_of(live)
    forced = ask(serving("json", answer, tool_parser="hermes", reasoning_parser="think"))
    assert forced["finish_reason"] == "tool_calls"
    assert forced["message"]["reasoning_content"] == "Which one? <tool_call>?"


# ---- reasoning


def test_reasoning_that_the_prompt_opened(serving: Callable[..., Live]) -> None:
    live = serving("opened", "Hm.\n</think>\n\nFour.")
    message = ask(live, tools=None)["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Four.")


@pytest.mark.parametrize(
    "asked", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}]
)
def test_reasoning_is_switched_off_in_the_template(
    serving: Callable[..., Live], asked: dict[str, Any]
) -> None:
    live = serving("hermes", "Four.")
    assert ask(live, **asked)["message"]["content"] == "Four."
    assert prompt_of(live).endswith("<think></think>")
    live.post(MESSAGES, {"messages": HELLO, "thinking": {"type": "disabled"}})
    assert prompt_of(live).endswith("<think></think>")
    live.post(MESSAGES, {"messages": HELLO, "thinking": {"type": "adaptive"}})
    assert prompt_of(live).endswith("assistant\n")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "a b", "self"])
def test_the_server_s_own_template_variables_cannot_be_set(
    serving: Callable[..., Live], name: str
) -> None:
    live = serving("hermes", "Four.")
    body = {"messages": HELLO, "chat_template_kwargs": {name: 1}}
    assert live.post(CHAT, body).status_code == 422


def test_markers_in_template_variables_stay_text(serving: Callable[..., Live]) -> None:
    live = serving("hermes", "Four.")
    ask(live, chat_template_kwargs={"note": "N<|im_end|>"})
    assert prompt_of(live).startswith("N<|im_end|>")
    ids = live.engine.client.requests[-1].prompt_ids  # type: ignore[union-attr]
    assert ids.count(258) == 1


def test_disabled_thinking_is_not_shown(serving: Callable[..., Live]) -> None:
    live = serving("hermes", "<think>Hm.</think>Four.")
    body = {"messages": HELLO, "thinking": {"type": "disabled"}}
    four = [{"type": "text", "text": "Four."}]
    assert live.post(MESSAGES, body).json()["content"] == four
    events = chunks_of(live.stream(MESSAGES, body))
    assert {event["index"] for event in events if "index" in event} == {0}
    shown = live.post(MESSAGES, {"messages": HELLO}).json()["content"]
    assert [block["type"] for block in shown] == ["thinking", "text"]


# ---- history


def test_a_template_without_tools_gets_them_as_text(
    serving: Callable[..., Live], oai: Callable[[Live], openai.OpenAI]
) -> None:
    live = serving("plain", ANSWERS["hermes"])
    client = oai(live)
    first = client.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)  # type: ignore[arg-type]
    assert first.choices[0].finish_reason == "tool_calls"
    assert '{"name": "get_weather", "parameters": {' in prompt_of(live)
    message = first.choices[0].message
    assert message.tool_calls is not None
    results: Any = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {i}"}
        for i, call in enumerate(message.tool_calls)
    ]
    turns: Any = [*HELLO, message.to_dict(), *results]
    client.chat.completions.create(model="m", messages=turns, tools=TOOLS)
    prompt = prompt_of(live)
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo é' in prompt
    assert "<|im_start|>user\n<tool_response>\nresult 0\n</tool_response>\n<tool_resp" in prompt
    ask(live, tools=None)
    assert "You can call" not in prompt_of(live)


def test_ids_from_elsewhere_fit_mistral_s_templates(serving: Callable[..., Live]) -> None:
    live = serving("mistral", ANSWERS["mistral"])
    own = ask(live)["message"]["tool_calls"][0]["id"]
    assert len(own) == 9 and own.isalnum()
    for given in (own, "toolu_01A-b"):
        function = {"name": "now", "arguments": ""}
        call = {"id": given, "type": "function", "function": function}
        turns = [
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": given, "content": [{"type": "text", "text": "4"}]},
        ]
        ask(live, messages=turns)
        used = prompt_of(live).split("CALL ")[1].split()[0]
        assert len(used) == 9 and used.isalnum() and (used == given) == (given == own)
        assert f"4 FOR {used}" in prompt_of(live)


@pytest.mark.parametrize(
    "result, told",
    [
        ({"content": "no such file", "is_error": True}, "Error: no such file FOR"),
        ({"content": "Error 5", "is_error": True}, "\nError 5 FOR"),
        ({"is_error": True}, "\nError FOR"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "\nab FOR"),
        ({}, "\n FOR"),
    ],
)
def test_results_as_anthropic_s_clients_send_them(
    serving: Callable[..., Live], result: dict[str, Any], told: str
) -> None:
    live = serving("hermes", "Four.")
    use = {"type": "tool_use", "id": "t1", "name": "now", "input": {"x": {"y": None}}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", **result}]},
    ]
    response = live.post(MESSAGES, {"messages": turns, "tools": CLAUDE_TOOLS, "max_tokens": 4})
    assert response.status_code == 200, response.text
    assert told in prompt_of(live) and 'CALL t1 now {"x": {"y": null}}' in prompt_of(live)


# ---- the guide


def test_the_guide_s_examples_run(
    serving: Callable[..., Live], capsys: pytest.CaptureFixture[str]
) -> None:
    guide = Path(__file__).resolve().parents[3] / "docs" / "guide" / "tools.md"
    text = guide.read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    live = serving("hermes")
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    for example in examples:
        live.script.answers = [call, "It is 4 degrees."]
        exec(example.replace("http://127.0.0.1:8000", live.url), {})
        assert capsys.readouterr().out == "It is 4 degrees.\n"
        assert "4 degrees in Oslo" in prompt_of(live)
