"""/v1/messages and count_tokens: history, tools, usage, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from live_server import Live

MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def prompt_of(live: Live, **body: Any) -> str:
    response = live.post(MESSAGES, {"messages": HELLO, "max_tokens": 1, **body})
    assert response.status_code == 200, response.text
    engine = live.engine
    assert engine is not None and engine.tokenizer is not None
    ids = engine.client.requests[-1].prompt_ids
    return engine.tokenizer.decode(ids, skip_special_tokens=False)


def test_all_text_blocks_are_used(live: Live) -> None:
    blocks = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    plain = prompt_of(live, system="Be kind.")
    as_blocks = prompt_of(
        live,
        messages=[{"role": "user", "content": blocks}],
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}],
    )
    assert plain == as_blocks


def test_tool_history_is_rendered_in_order(live: Live) -> None:
    turns = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "é"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "4 degrees"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    prompt = prompt_of(live, messages=turns, tools=[TOOL])
    assert prompt.startswith('TOOLS [{"type": "function"')
    assert 'Let me see.CALL f {"x": "é"}<|im_end|>' in prompt and "hm" not in prompt
    assert prompt.index("tool\n4 degrees") < prompt.index("user\nSo?")


def test_usage_tells_the_prefix_hit_apart(live: Live) -> None:
    live.script.n_cached = 64
    usage = live.post(MESSAGES, {"messages": [{"role": "user", "content": "a" * 80}]}).json()[
        "usage"
    ]
    assert usage["cache_read_input_tokens"] == 64 and usage["cache_creation_input_tokens"] == 0
    count = live.post(
        MESSAGES + "/count_tokens", {"messages": [{"role": "user", "content": "a" * 80}]}
    ).json()
    assert count == {"input_tokens": usage["input_tokens"] + 64}


def test_an_end_token_is_end_turn(live: Live) -> None:
    live.script.ends_after = 4
    body = live.post(MESSAGES, {"messages": HELLO}).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["content"] == [{"type": "text", "text": "Once"}]
    assert body["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    "bad, param",
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "refused on request"),
        ({"messages": [{"role": "user", "content": "a" * 700}]}, "599"),
    ],
)
def test_refusals_are_400_in_both_shapes(live: Live, bad: dict[str, Any], param: str) -> None:
    response = live.post(MESSAGES, {"messages": HELLO, "max_tokens": 4, **bad})
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert param in body["error"]["message"] and body["detail"] == body["error"]["message"]
