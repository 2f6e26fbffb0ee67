"""Each kind of bad input over real HTTP: its status, both envelopes, and a server that goes on."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from live_server import Live

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
FINE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    MESSAGES: {"messages": HELLO, "max_tokens": 2},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2},
    RESPONSES: {"input": "Hello", "max_output_tokens": 2},
}
OPENAI = (CHAT, COMPLETIONS)
TEXT = {"type": "text"}
SECONDS = 5  # far beyond what any of these takes: a hang is what it notices


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def deep(levels: int) -> Any:
    nested: Any = {}
    for _ in range(levels):
        nested = {"properties": {"a": nested}}
    return nested


def deep_function(levels: int) -> dict[str, Any]:
    """As /v1/responses takes it, and repeats it though nobody may call it."""
    function = {"type": "function", "name": "f", "parameters": deep(levels)}
    return {"tools": [function], "tool_choice": "none"}


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


# (name, paths, fields beside the fine ones, statuses that are right)
CASES: list[tuple[str, tuple[str, ...], dict[str, Any], set[int]]] = [
    ("bias of an unknown token", OPENAI, {"logit_bias": {"99999999": 5}}, {400}),
    ("bias that is no number", OPENAI, {"logit_bias": {"5": "x"}}, {422}),
    ("stop ids outside the vocabulary", OPENAI, {"stop_token_ids": [999999999, -7]}, {400}),
    ("ids wider than a word", (COMPLETIONS,), {"prompt": [2**70]}, {422}),
    ("ids outside the vocabulary", (COMPLETIONS,), {"prompt": [999999]}, {400}),
    ("wide top_k is the vocabulary", (*OPENAI, MESSAGES, RESPONSES), {"top_k": 9999999}, {200}),
    ("top_k off", (*OPENAI, MESSAGES, RESPONSES), {"top_k": -1}, {200}),
    ("numbers as strings", (*OPENAI, MESSAGES, RESPONSES), {"temperature": "1"}, {422}),
    ("booleans as numbers", (*OPENAI, MESSAGES, RESPONSES), {"top_p": True}, {422}),
    ("a budget of nothing", (*OPENAI, MESSAGES), {"max_tokens": 0}, {422}),
    ("a budget beyond all", OPENAI, {"max_tokens": 2**62}, {200}),
    ("more choices than allowed", OPENAI, {"n": 10**9}, {400}),
    ("no messages", (CHAT, MESSAGES), {"messages": []}, {422}),
    ("an empty prompt", (COMPLETIONS,), {"prompt": ""}, {400, 422}),
    ("no prompts", (COMPLETIONS,), {"prompt": []}, {400, 422}),
    ("an empty input", (RESPONSES,), {"input": ""}, {400}),
    ("an empty content", (CHAT, MESSAGES), user(""), {200}),
    ("an empty stop string", OPENAI, {"stop": ""}, {422}),
    ("too many stop strings", OPENAI, {"stop": [str(i) for i in range(99)]}, {400}),
    ("a long stop string", OPENAI, {"stop": "x" * 9999}, {400}),
    ("a stop that never comes", OPENAI, {"stop": "oat\u2603"}, {200}),
    ("a template that refuses", (CHAT, MESSAGES), user("refuse me"), {400}),
    (
        "an unknown role",
        (CHAT, MESSAGES),
        {"messages": [{"role": "wizard", "content": "x"}]},
        {422},
    ),
    ("content of the wrong type", (CHAT, MESSAGES), user(7), {422}),
    ("content missing", (CHAT, MESSAGES), {"messages": [{"role": "user"}]}, {422}),
    ("a template in a message", (CHAT, MESSAGES), user("{{ ''.__class__.__mro__ }}"), {200}),
    ("markers in a message", (CHAT, MESSAGES), user("x<|im_end|>"), {200}),
    ("a choice among no tools", (CHAT,), {"tool_choice": "none"}, {200}),
    ("a tool without a name", (CHAT,), {"tools": [{"type": "function", "function": {}}]}, {422}),
    ("tools nested deeply", (CHAT,), {"tools": [tool(deep(100))]}, {400}),
    ("tools that are off nested deeply", (RESPONSES,), deep_function(200), {400}),
    ("the same in a stream", (RESPONSES,), {**deep_function(200), "stream": True}, {400}),
    (
        "a schema that is off",
        (RESPONSES,),
        {"text": {"format": TEXT | {"schema": deep(200)}}},
        {400},
    ),
    ("more tools than any model reads", (CHAT,), {"tools": [tool({})] * 2000}, {422}),
    ("half a million prompts", (COMPLETIONS,), {"prompt": [[1]] * 500_000}, {422}),
    ("a prompt beyond the context", (CHAT, MESSAGES), user("x" * 5000), {400}),
    ("an input beyond the context", (RESPONSES,), {"input": "x" * 5000}, {400}),
    (
        "a picture of this machine",
        (CHAT,),
        user([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]),
        {400},
    ),
    ("a file of this machine", (RESPONSES,), {"previous_response_id": "../../etc/passwd"}, {404}),
    ("a path for a model", (*OPENAI, MESSAGES, RESPONSES), {"model": "../../../etc/passwd"}, {200}),
    ("a stream beyond the context", (CHAT, MESSAGES), {**user("x" * 5000), "stream": True}, {400}),
    ("a deadline in the past", (*OPENAI, MESSAGES, RESPONSES), {"deadline_ms": 0}, {422}),
]
RAW = {
    "a lone surrogate": b'{"messages":[{"role":"user","content":"boat \\ud83d"}],"max_tokens":2}',
    "bytes that are no UTF-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "not a number": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "JSON that is cut off": b'{"messages":[{"role":"us',
    "brackets without end": b"[" * 100_000,
    "no object": b'"hello"',
    "nothing": b"",
    "a wide exponent": b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
}


def check_error(path: str, response: httpx.Response) -> None:
    body = response.json()
    assert body["detail"]
    error = body["error"]
    assert error["message"] and error["type"]
    if path == MESSAGES:
        assert body["type"] == "error"
    else:
        assert {"param", "code"} <= error.keys()
    for secret in ("Traceback", "site-packages", "/python/"):
        assert secret not in response.text


def check_health(live: Live, path: str) -> None:
    assert live.http.get("/health", timeout=SECONDS).json()["status"] == "ok"
    assert live.http.post(path, json=FINE[path], timeout=SECONDS).status_code == 200
    assert live.wait_idle()["waiting_queue"] == 0


@pytest.mark.parametrize(
    "path, fields, right",
    [
        pytest.param(path, fields, right, id=f"{name}-{path}")
        for name, paths, fields, right in CASES
        for path in paths
    ],
)
def test_a_bad_field_has_its_status(
    live: Live, path: str, fields: dict[str, Any], right: set[int]
) -> None:
    response = live.http.post(path, json={**FINE[path], **fields}, timeout=SECONDS)
    assert response.status_code in right, response.text[:300]
    if response.status_code != 200:
        check_error(path, response)
    check_health(live, path)


@pytest.mark.parametrize("path", FINE)
@pytest.mark.parametrize("name", RAW)
def test_bad_bytes_are_refused_in_both_envelopes(live: Live, path: str, name: str) -> None:
    headers = {"content-type": "application/json"}
    response = live.http.post(path, content=RAW[name], headers=headers, timeout=SECONDS)
    assert response.status_code == 422
    check_error(path, response)
    check_health(live, path)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\n",  # never ends its head
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",  # a TLS hello
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nx: " + b"y" * 500_000 + b"\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_a_broken_connection_leaves_the_server_well(live: Live, sent: bytes) -> None:
    place = urlsplit(live.url)
    assert place.hostname is not None and place.port is not None
    with socket.create_connection((place.hostname, place.port), timeout=SECONDS) as connection:
        connection.sendall(sent)
    check_health(live, CHAT)


def test_a_neighbour_s_answer_does_not_change(live: Live) -> None:
    expected = live.post(COMPLETIONS, {**FINE[COMPLETIONS], "max_tokens": 30}).json()["choices"]
    for fields in ({"logit_bias": {"99999999": 5}}, {"stop_token_ids": [999999999, -7]}):
        live.post(COMPLETIONS, {**FINE[COMPLETIONS], **fields})
        again = live.post(COMPLETIONS, {**FINE[COMPLETIONS], "max_tokens": 30}).json()["choices"]
        assert again == expected


def test_texts_of_any_character_stay_one_line_of_a_stream(live: Live) -> None:
    live.script.text = "a\u2028b\u2029c\u0085d\r\ne\x00f\u00e9 \U0001f9ea"
    live.script.ends_after = len(live.script.text.encode())
    for path in (CHAT, COMPLETIONS):
        raw = live.stream(path, {**FINE[path], "max_tokens": 100})
        texts = []
        for line in raw.splitlines():  # breaks at every character that any reader may break at
            assert line == "" or line.startswith("data: ")
            if line and line != "data: [DONE]":
                choice = json.loads(line[6:])["choices"][0]
                texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        assert "".join(texts) == live.script.text
