"""/v1/responses through the official client: shapes, the order of events, stored conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine, make_tokenizer
from live_server import Live
from openai.types.responses import Response

from astrai.structured import Grammar

RESPONSES = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


@pytest.fixture
def oai(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def hermes(start_server: Callable[..., Live]) -> Live:
    """A server whose model calls a function."""
    live = start_server(FakeEngine(), tool_parser="hermes")
    live.script.text, live.script.ends_after = CALL, len(CALL)
    return live


def prompt_of(live: Live, i: int = -1) -> str:
    assert live.engine is not None
    return make_tokenizer().decode(live.engine.client.requests[i].prompt_ids, False)


def events_of(live: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream; each is named after its type, numbered, and nothing else follows."""
    events = []
    for block in live.stream(RESPONSES, body).split("\n\n")[:-1]:
        name, payload = block.split("\n")
        event = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def strict(response: Response) -> Response:
    """The response once more, with every field checked against the client's own types."""
    return Response.model_validate(response.model_dump(by_alias=True, warnings=False))


# Whole answers


def test_a_text_is_answered_by_a_message(live: Live, oai: openai.OpenAI) -> None:
    live.script.ends_after = 20
    response = strict(
        oai.responses.create(model="m", input="Hello", instructions="Be kind", metadata={"a": "b"})
    )
    assert response.status == "completed" and response.incomplete_details is None
    assert response.output_text == live.script.text[:20]
    assert [item.type for item in response.output] == ["message"]
    assert response.id.startswith("resp_") and response.metadata == {"a": "b"}
    assert response.usage is not None
    assert response.usage.output_tokens == 21  # the end token is one
    assert response.usage.total_tokens == response.usage.input_tokens + 21
    prompt = prompt_of(live)
    assert prompt.index("system\nBe kind") < prompt.index("user\nHello")


def test_ids_begin_as_the_application_was_told(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), response_id_prefix="resp_a_")
    asked = {"model": "astrai", "input": "Hello", "max_output_tokens": 3}
    whole = live.post("/v1/responses", asked).json()["id"]
    created = live.stream("/v1/responses", asked).split("\n")[1].removeprefix("data: ")
    streamed = json.loads(created)["response"]["id"]

    for response_id in (whole, streamed):
        assert re.fullmatch(r"resp_a_[0-9a-f]{24}", response_id)
        more = {**asked, "previous_response_id": response_id}
        assert live.post("/v1/responses", more).json()["previous_response_id"] == response_id
    assert whole != streamed


def test_a_limit_makes_it_incomplete(oai: openai.OpenAI) -> None:
    response = strict(oai.responses.create(model="m", input="Hello", max_output_tokens=5))
    assert response.status == "incomplete" and response.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 5


def test_items_of_every_kind_reach_the_template(live: Live, oai: openai.OpenAI) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "We"},
                {"type": "input_text", "text": "ather?"},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "get_weather",
            "arguments": '{"city": "Oslo"}',
        },
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Rain.", "annotations": []}],
        },
        {"role": "user", "content": "Thanks"},
    ]
    oai.responses.create(model="m", input=items, tools=[WEATHER], max_output_tokens=2)  # type: ignore[list-item]
    prompt = prompt_of(live)
    parts = ["TOOLS", "system\nBe brief", "user\nWeather?", "CALL get_weather", "tool\nrain"]
    places = [prompt.index(part) for part in [*parts, "assistant\nRain.", "user\nThanks"]]
    assert places == sorted(places)


def test_tool_calls_are_items_and_go_back_as_such(hermes: Live) -> None:
    live, oai = hermes, openai.OpenAI(base_url=hermes.url + "/v1", api_key="none")
    response = strict(oai.responses.create(model="m", input="Hi", tools=[WEATHER]))  # type: ignore[list-item]
    assert [item.type for item in response.output] == ["message", "function_call"]
    call = response.output[1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Oslo"}
    live.script.text, live.script.ends_after = "Rain.", 5
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    end = oai.responses.create(
        model="m",
        input=[result],
        previous_response_id=response.id,
        tools=[WEATHER],  # type: ignore[list-item]
    )
    assert end.output_text == "Rain."
    prompt = prompt_of(live)
    assert prompt.index("user\nHi") < prompt.index("CALL get_weather") < prompt.index("tool\nrain")


def test_allowed_tools_are_the_only_ones_shown(live: Live, oai: openai.OpenAI) -> None:
    other = {**WEATHER, "name": "other_tool"}
    choice: Any = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "other_tool"}],
    }
    tools: Any = [WEATHER, other]
    oai.responses.create(
        model="m", input="Hi", tools=tools, tool_choice=choice, max_output_tokens=2
    )
    assert "other_tool" in prompt_of(live) and "get_weather" not in prompt_of(live)
    oai.responses.create(
        model="m", input="Hi", tools=tools, tool_choice="none", max_output_tokens=2
    )
    assert "TOOLS" not in prompt_of(live)


def test_logprobs_come_when_included(oai: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    response = oai.responses.create(
        model="m", input="Hi", include=include, top_logprobs=2, max_output_tokens=4
    )
    logprobs = response.output[0].content[0].logprobs  # type: ignore[union-attr, index]
    assert logprobs is not None and len(logprobs) == 4
    assert len(logprobs[0].top_logprobs) == 2


# Streams


def test_the_events_of_a_text_come_in_their_order(live: Live) -> None:
    live.script.ends_after = 6
    events = events_of(live, {"input": "Hi"})
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert deltas >= 1
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    text = live.script.text[:6]
    assert "".join(e["delta"] for e in events if e["type"].endswith("text.delta")) == text
    assert events[-4]["text"] == text and events[-3]["part"]["text"] == text
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert len({e["item_id"] for e in events if "item_id" in e}) == 1
    assert events[0]["response"]["status"] == "in_progress" and not events[0]["response"]["output"]


@pytest.mark.parametrize(
    "include", [[], ["message.output_text.logprobs"]], ids=["text", "logprobs"]
)
def test_a_text_that_comes_piece_by_piece_is_whole_at_the_end(
    live: Live, include: list[str]
) -> None:
    live.script.delay_s = 0.002
    events = events_of(live, {"input": "Hello", "max_output_tokens": 40, "include": include})
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 20
    assert len({tuple(delta) for delta in deltas}) == 1, "fields differ"
    assert {(d["item_id"], d["output_index"], d["content_index"]) for d in deltas} == {
        (deltas[0]["item_id"], 0, 0)
    }
    assert sum(bool(delta["logprobs"]) for delta in deltas) > (20 if include else -1)
    text = "".join(delta["delta"] for delta in deltas)
    assert text == live.script.text[:40]
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    response = events[-1]["response"]
    assert done["text"] == response["output"][0]["content"][0]["text"] == text
    assert response["usage"]["output_tokens"] == 40
    assert live.http.get(f"{RESPONSES}/{response['id']}").json() == response


def test_the_events_of_a_call_follow_those_of_the_text_before_it(hermes: Live) -> None:
    events = events_of(hermes, {"input": "Hi", "tools": [WEATHER]})
    kinds = [event["type"].removeprefix("response.") for event in events]
    added = [i for i, kind in enumerate(kinds) if kind == "output_item.added"]
    done = [i for i, kind in enumerate(kinds) if kind == "output_item.done"]
    assert len(added) == 2 and added[0] < done[0] < added[1] < done[1]
    assert [events[i]["output_index"] for i in added] == [0, 1]
    arguments = [e["delta"] for e in events if e["type"].endswith("arguments.delta")]
    assert json.loads("".join(arguments)) == {"city": "Oslo"}
    finished = events[kinds.index("function_call_arguments.done")]
    assert finished["arguments"] == "".join(arguments)
    assert events[added[1]]["item"]["arguments"] == ""
    assert events[-1]["response"]["output"] == [events[i]["item"] for i in done]


def test_a_call_that_ends_with_the_budget_is_whole(hermes: Live) -> None:
    hermes.script.ends_after = 2 * len(CALL)
    body = {"input": "Hi", "tools": [WEATHER], "max_output_tokens": len(CALL)}
    whole = hermes.post(RESPONSES, body).json()
    streamed = events_of(hermes, body)[-1]["response"]
    for response in (whole, streamed):
        assert response["status"] == "incomplete"
        assert [item["status"] for item in response["output"]] == ["completed"] * 2


def test_the_official_stream_helper_puts_it_together(hermes: Live) -> None:
    oai = openai.OpenAI(base_url=hermes.url + "/v1", api_key="none")
    with oai.responses.stream(model="m", input="Hi", tools=[WEATHER]) as stream:  # type: ignore[list-item]
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces).strip() == "Let me see." == final.output_text.strip()
    assert final.output[1].type == "function_call"
    assert json.loads(final.output[1].arguments) == {"city": "Oslo"}


def test_a_stream_equals_the_whole_answer(live: Live, oai: openai.OpenAI) -> None:
    def shape(response: Any) -> Any:
        dump = response.model_dump(warnings=False)
        for item in dump["output"]:
            item.pop("id"), item.pop("call_id", None)
        return {k: dump[k] for k in ("output", "status", "incomplete_details", "usage", "tools")}

    for limit in (1, 7, None):
        body: dict[str, Any] = {"model": "m", "input": "Hi", "max_output_tokens": limit}
        live.script.ends_after = 30
        whole = oai.responses.create(**body)
        last = list(oai.responses.create(**body, stream=True))[-1]
        assert last.type in ("response.completed", "response.incomplete")
        assert shape(last.response) == shape(whole)


def test_a_fault_in_mid_stream_is_a_failed_response(live: Live) -> None:
    live.script.fail_at, live.script.delay_s = 4, 0.02
    events = events_of(live, {"input": "Hi"})
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"


# Stored responses


def test_a_response_continues_a_stored_one(live: Live, oai: openai.OpenAI) -> None:
    live.script.text, live.script.ends_after = "Blue.", 5
    first = oai.responses.create(model="m", input="Colour?", instructions="Be brief")
    second = oai.responses.create(model="m", input="Why?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    prompt = prompt_of(live)
    places = [prompt.index(text) for text in ("Colour?", "assistant\nBlue.", "Why?")]
    assert places == sorted(places)
    assert "Be brief" not in prompt, "instructions are of one response"
    with oai.responses.stream(model="m", input="So?", previous_response_id=second.id) as stream:
        third = stream.get_final_response()
    assert oai.responses.retrieve(third.id).output_text == "Blue."
    assert prompt_of(live).count("assistant\nBlue.") == 2


def test_stored_responses_can_be_read_and_deleted(live: Live, oai: openai.OpenAI) -> None:
    made = oai.responses.create(model="m", input="Hi", max_output_tokens=3)
    assert oai.responses.retrieve(made.id) == made
    items = list(oai.responses.input_items.list(made.id))
    assert [item.content[0].text for item in items] == ["Hi"]  # type: ignore[union-attr]
    oai.responses.delete(made.id)
    for ask in (oai.responses.retrieve, oai.responses.delete, oai.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            ask(made.id)
    with pytest.raises(openai.NotFoundError) as info:
        oai.responses.create(model="m", input="Hi", previous_response_id=made.id)
    assert info.value.param == "previous_response_id"


def test_store_false_keeps_nothing(oai: openai.OpenAI) -> None:
    made = oai.responses.create(model="m", input="Hi", max_output_tokens=3, store=False)
    with pytest.raises(openai.NotFoundError):
        oai.responses.retrieve(made.id)


def test_input_items_come_in_pages(live: Live, oai: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"n{i}"} for i in range(7)]
    made = oai.responses.create(model="m", input=items, max_output_tokens=1)

    def texts(order: Any) -> list[str]:
        page = oai.responses.input_items.list(made.id, limit=3, order=order)
        return [item.content[0].text for item in page]  # type: ignore[union-attr]

    assert texts("asc") == [f"n{i}" for i in range(7)] == texts("desc")[::-1]
    path = f"{RESPONSES}/{made.id}/input_items"
    for query in ("limit=0", "limit=101", "limit=x", "order=up"):
        refused = live.http.get(f"{path}?{query}")
        assert refused.status_code == 422 and refused.json()["error"]["message"]
    assert live.http.get(f"{path}?after=nothing").status_code == 400


def test_the_oldest_make_room_for_new_ones(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), max_stored_responses=2)

    def made() -> str:
        return str(live.post(RESPONSES, {"input": "Hi", "max_output_tokens": 1}).json()["id"])

    def status(response_id: str) -> int:
        return live.http.get(f"{RESPONSES}/{response_id}").status_code

    first, second = made(), made()
    assert status(first) == 200  # used just now, so the second one goes first
    third = made()
    assert [status(i) for i in (first, second, third)] == [200, 404, 200]


def test_truncation_drops_the_oldest_turns(live: Live, oai: openai.OpenAI) -> None:
    items: Any = []
    for i in range(12):
        items.append({"role": "user", "content": f"question {i:02} " + "x" * 40})
        items.append({"role": "assistant", "content": f"answer {i:02}"})
    items.append({"role": "user", "content": "last"})
    with pytest.raises(openai.BadRequestError) as info:
        oai.responses.create(model="m", input=items, max_output_tokens=1)
    assert info.value.code == "context_length_exceeded" and info.value.param == "input"
    oai.responses.create(
        model="m", input=items, max_output_tokens=1, truncation="auto", instructions="Stay"
    )
    prompt = prompt_of(live)
    assert "Stay" in prompt and "last" in prompt and "question 11" in prompt
    assert "question 00" not in prompt
    kept = [i for i in range(12) if f"question {i:02}" in prompt]
    assert kept == list(range(kept[0], 12)), "what is kept is the end of the conversation"
    one_more = len(prompt) + len(f"question 00 {'x' * 40}answer 00") + 2 * len("<|im_start|>user")
    assert one_more > 600 - 1, "no turn is dropped without need"


def test_input_tokens_are_counted_as_they_are_charged(live: Live, oai: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "m", "input": "Hello", "instructions": "Be kind"}
    counted = oai.responses.input_tokens.count(**body).input_tokens
    made = oai.responses.create(**body, max_output_tokens=1)
    assert made.usage is not None and made.usage.input_tokens == counted


def test_a_text_format_becomes_its_grammar(live: Live, oai: openai.OpenAI) -> None:
    schema: Any = {"type": "object", "properties": {"b": {"type": "string"}}}
    shape: Any = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    response = oai.responses.create(model="m", input="Hi", text=shape, max_output_tokens=2)
    assert live.engine is not None
    assert live.engine.client.requests[-1].grammar == Grammar.json_schema(schema)
    assert response.text is not None and response.text.format is not None
    assert response.text.format.type == "json_schema"
    refused: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "wibble"}}}
    with pytest.raises(openai.BadRequestError):
        oai.responses.create(model="m", input="Hi", text=refused)


# What is refused


@pytest.mark.parametrize(
    "body, param",
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"include": ["wibble"]}, "include"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]},
            "input",
        ),
        ({"input": "refuse me"}, "input"),
        (
            {"text": {"format": {"type": "json_schema", "name": "my schema!", "schema": {}}}},
            "text.format",
        ),
    ],
)
def test_what_cannot_be_honoured_is_a_400_by_name(
    live: Live, body: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        response = live.post(RESPONSES, {"input": "Hi", "stream": stream, **body})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
    assert live.post(RESPONSES, {"input": "Hi", "max_output_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"input": 7},
        {"input": [7]},
        {"input": [{"role": "wizard", "content": "x"}]},
        {"input": [{"role": "user"}]},
        {"input": [{"type": "function_call"}]},
        {"max_output_tokens": 0},
        {"temperature": 3},
        {"metadata": {"a": 1}},
        {"metadata": {str(i): "x" for i in range(17)}},
        {"tools": [{"type": "function"}]},
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        {"truncation": "some"},
        {"top_logprobs": 21},
        {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": ["f"]}]}},
        {"tool_choice": {"type": "allowed_tools", "tools": [7]}},
    ],
)
def test_wrong_types_are_422(live: Live, body: dict[str, Any]) -> None:
    response = live.post(RESPONSES, {"input": "Hi", **body})
    assert response.status_code == 422 and response.json()["error"]["param"]


def test_null_fields_are_absent_ones(live: Live) -> None:
    names = ["instructions", "tools", "tool_choice", "text", "reasoning", "metadata", "include"]
    names += ["temperature", "top_p", "truncation", "store", "previous_response_id", "user"]
    body = {"input": "Hi", "max_output_tokens": 2, **dict.fromkeys(names)}
    assert live.post(RESPONSES, body).status_code == 200


def test_a_stored_response_is_neither_streamed_again_nor_cancelled(live: Live) -> None:
    made = live.post(RESPONSES, {"input": "Hi", "max_output_tokens": 1}).json()["id"]
    assert live.http.get(f"{RESPONSES}/{made}?stream=true").status_code == 400
    assert live.http.post(f"{RESPONSES}/{made}/cancel").status_code == 400


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "g"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
    ],
)
@pytest.mark.parametrize("tools", [None, [{"type": "function", "name": "f"}]])
def test_a_choice_of_a_tool_that_is_not_there_is_refused(
    live: Live, choice: Any, tools: Any
) -> None:
    response = live.post(RESPONSES, {"input": "Hi", "tools": tools, "tool_choice": choice})
    assert response.status_code == 400, response.text
    assert "'g'" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "tool_choice"
    assert live.post(RESPONSES, {"input": "Hi", "tool_choice": "required"}).status_code == 400
