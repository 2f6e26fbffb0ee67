"""/v1/chat/completions: fields honoured, history rendered, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live_server import Live

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def ask(live: Live, messages: Any = HELLO, **body: Any) -> dict[str, Any]:
    response = live.post(CHAT, {"messages": messages, "max_tokens": 4, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def prompt_of(live: Live, messages: Any, **body: Any) -> str:
    """The text that reached the engine."""
    ask(live, messages, **body)
    engine = live.engine
    assert engine is not None and engine.tokenizer is not None
    ids = engine.client.requests[-1].prompt_ids
    return engine.tokenizer.decode(ids, skip_special_tokens=False)


def test_defaults_reach_the_engine(live: Live) -> None:
    live.script.ends_after = 3
    assert live.post(CHAT, {"messages": HELLO}).status_code == 200
    params = live.engine.client.requests[-1].params  # type: ignore[union-attr]
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 50)
    assert params.max_tokens == 600  # 2048, cut to the context
    assert params.logprobs is None and params.seed is None and params.stop == ()


def test_every_sampling_field_reaches_the_engine(live: Live) -> None:
    sent = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "seed": -5,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    ask(live, **sent, logit_bias={"7": -100}, stop=["x"], stop_token_ids=[3])
    params = live.engine.client.requests[-1].params  # type: ignore[union-attr]
    assert {name: getattr(params, name) for name in sent} == sent
    assert (params.logit_bias, params.stop, params.stop_token_ids) == ({7: -100.0}, ("x",), (3,))


def test_max_completion_tokens_beats_max_tokens(live: Live) -> None:
    assert ask(live, max_tokens=9, max_completion_tokens=2)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("top_k, got", [(0, 0), (-1, -1), (None, 50), (10**7, 300)])
def test_top_k_off_values_and_ceiling(live: Live, top_k: int | None, got: int) -> None:
    ask(live, top_k=top_k)
    assert live.engine.client.requests[-1].params.top_k == got  # type: ignore[union-attr]


def test_choices_of_a_seeded_request_draw_with_different_seeds(live: Live) -> None:
    answer = ask(live, n=3, seed=2**64 - 1)
    requests = live.engine.client.requests[-3:]  # type: ignore[union-attr]
    assert [request.params.seed for request in requests] == [2**64 - 1, 0, 1]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 12


def test_first_chunks_of_n_choices_come_in_order(live: Live) -> None:
    raw = live.stream(CHAT, {"messages": HELLO, "max_tokens": 3, "n": 4})
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    assert [chunk["choices"][0]["index"] for chunk in chunks[:4]] == [0, 1, 2, 3]
    assert all(chunk["choices"][0]["delta"] == {"role": "assistant"} for chunk in chunks[:4])


@pytest.mark.parametrize("_shared", [False], indirect=True)  # the fault is of this process
def test_a_refused_choice_cancels_the_others(live: Live) -> None:
    live.script.queue_full = True
    response = live.post(CHAT, {"messages": HELLO, "n": 3, "max_tokens": 400})
    assert response.status_code == 429 and response.headers["retry-after"] == "3"
    assert response.json()["error"]["code"] == "queue_full"
    live.wait_idle()


def test_logprobs_spell_the_text(live: Live) -> None:
    live.script.text, live.script.ends_after = "žluť", 6
    choice = ask(live, logprobs=True, top_logprobs=2, max_tokens=20)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == "žluť"
    assert len(entries) == 7, "one entry a token, the end token included"
    assert entries[-1]["token"] == "<|im_end|>" and entries[-1]["bytes"] == []
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_streamed_logprobs_and_ids_equal_the_plain_ones(live: Live) -> None:
    options = {"logprobs": True, "return_token_ids": True, "max_tokens": 12, "stop": ["zzz"]}
    plain = ask(live, **options)["choices"][0]
    raw = live.stream(CHAT, {"messages": HELLO, **options})
    entries, ids = [], []
    for line in raw.splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line[6:])["choices"][0]
            entries += (choice.get("logprobs") or {}).get("content", [])
            ids += choice.get("token_ids", [])
    assert entries == plain["logprobs"]["content"] and ids == plain["token_ids"]


def test_line_separators_stay_inside_one_data_line(live: Live) -> None:
    live.script.text = "a\u2028b\u2029c\u0085d\r\ne"
    limit = len(live.script.text.encode())
    raw = live.stream(CHAT, {"messages": HELLO, "max_tokens": limit})
    events = [line for line in raw.splitlines() if line]
    assert all(line.startswith("data: ") for line in events)
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == live.script.text


def test_developer_messages_are_system_messages(live: Live) -> None:
    system, developer = (
        prompt_of(live, [{"role": role, "content": "Be kind."}, *HELLO])
        for role in ("system", "developer")
    )
    assert system == developer


def test_text_parts_are_joined(live: Live) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert prompt_of(live, [{"role": "user", "content": parts}]) == prompt_of(live, HELLO)


def test_null_content_of_an_assistant_turn_is_empty(live: Live) -> None:
    null, empty = (
        prompt_of(live, [*HELLO, {"role": "assistant", "content": content}, *HELLO])
        for content in (None, "")
    )
    assert null == empty


@pytest.mark.parametrize("arguments", ["", "null", "{}", None])
def test_empty_arguments_are_an_empty_object(live: Live, arguments: str | None) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    prompt = prompt_of(live, turns)
    assert "CALL f {}<|im_end|>" in prompt and "tool\n42<|im_end|>" in prompt


def test_markers_in_content_stay_text(live: Live) -> None:
    prompt_of(live, [{"role": "user", "content": "x<|im_end|>"}])
    ids = live.engine.client.requests[-1].prompt_ids  # type: ignore[union-attr]
    assert ids.count(258) == 1, "only the template's own end marker is the token"


def test_tools_reach_the_template_unless_the_choice_is_none(live: Live) -> None:
    assert prompt_of(live, HELLO, tools=[TOOL]).startswith("TOOLS [")
    assert prompt_of(live, HELLO, tools=[TOOL], tool_choice="auto").startswith("TOOLS [")
    assert "TOOLS" not in prompt_of(live, HELLO, tools=[TOOL], tool_choice="none")


@pytest.mark.parametrize(
    "harmless",
    [
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tool_choice": "none"},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"user": "u-1"},
        {"logprobs": True, "top_logprobs": 0},
        {"stream_options": {"include_usage": True}},
        {"seed": 2**64 - 1},
        {"stop": []},
    ],
    ids=str,
)
def test_harmless_values_are_accepted(live: Live, harmless: dict[str, Any]) -> None:
    assert ask(live, **harmless)["choices"][0]["message"]["content"] == "Once"


def test_small_prefix_hits_do_not_show_in_usage(live: Live) -> None:
    for n_cached, told in ((16, 0), (63, 0), (64, 64)):
        live.script.n_cached = n_cached
        usage = ask(live)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == told


def _deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.schema",
    ),
    ({"n": 17}, "n"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"min_tokens": 5}, "min_tokens"),
    ({"logit_bias": {"300": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"stop_token_ids": [999999999, -7]}, "stop_token_ids"),
    ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}],
                }
            ]
        },
        "messages",
    ),
    *[
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": _deep(n)}}]},
            "tools",
        )
        for n in (65, 200, 900)
    ],
]


@pytest.mark.parametrize("bad, param", REFUSED)
def test_refusals_are_400_and_name_the_field(live: Live, bad: dict[str, Any], param: str) -> None:
    response = live.post(CHAT, {"messages": HELLO, "max_tokens": 4, **bad})
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["error"]["param"] == param and body["detail"] == body["error"]["message"]
    assert not live.engine.client.requests  # type: ignore[union-attr]
    assert live.post(CHAT, {"messages": HELLO, "max_tokens": 2}).status_code == 200


def test_template_errors_carry_the_template_s_message(live: Live) -> None:
    body = live.post(CHAT, {"messages": [{"role": "user", "content": "refuse me"}]}).json()
    assert "refused on request" in body["detail"]
    assert body["error"]["code"] == "template_error"


@pytest.mark.parametrize("stream", [False, True])
def test_an_overlong_prompt_names_the_limit(live: Live, stream: bool) -> None:
    for n_chars in (590, 100_000):
        turns = [{"role": "user", "content": "a" * n_chars}]
        response = live.post(CHAT, {"messages": turns, "max_tokens": 4, "stream": stream})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded" and "599" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_before_the_first_token_is_a_500(live: Live, stream: bool) -> None:
    live.script.fail_at = 1
    response = live.post(CHAT, {"messages": HELLO, "max_tokens": 4, "stream": stream})
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
