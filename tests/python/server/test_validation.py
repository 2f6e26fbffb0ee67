"""Bad bodies: every one a 4xx in both shapes, without echo, and the server goes on."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from live_server import Live

CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
FINE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    MESSAGES: {"messages": HELLO, "max_tokens": 2},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2},
}
HUGE = 2**70
JSON = {"content-type": "application/json"}

WRONG: dict[str, list[Any]] = {
    "temperature": [True, "1", 2.01, -0.1, HUGE, [], {}],
    "top_p": [True, "1", 1.01, -0.1, HUGE],
    "top_k": [True, "1", 1.5, -2, HUGE],
    "max_tokens": [True, "4", 0, -1, 1.5, HUGE],
    "stream": ["true", 1, 0],
    "model": [7, True, [], "m" * 1025],
}
WRONG_OPENAI: dict[str, list[Any]] = {
    "n": [True, "2", 0, -1, HUGE],
    "min_p": [True, "0", 1.1, -0.1],
    "presence_penalty": [True, "0", 2.1, -2.1],
    "frequency_penalty": [True, "0", 2.1, -2.1],
    "repetition_penalty": [True, "1", 0, -1, 1e-320, 10.5],
    "seed": [True, "1", 1.5, HUGE],
    "min_tokens": [True, "1", -1],
    "ignore_eos": ["yes", 1],
    "logit_bias": [[], "x", {"x": 1}, {"1.0": 1}, {"": 1}, {"1": "1"}, {"1": True}, {"1": 101}],
    "stop": [5, [1], "", [""], {}],
    "stop_token_ids": [[True], ["1"], [1.5], 1, [HUGE]],
    "stream_options": [True, [], {"include_usage": "yes"}],
    "user": [7],
}
CASES = [
    *[(path, {k: v}) for path in FINE for k, values in WRONG.items() for v in values],
    *[
        (p, {k: v})
        for p in (CHAT, COMPLETIONS)
        for k, values in WRONG_OPENAI.items()
        for v in values
    ],
    *[(CHAT, {"messages": bad}) for bad in ([], "x", [7], [{}], [{"role": "user"}], {}, None)],
    *[(CHAT, {"messages": [{"role": "user", "content": bad}]}) for bad in (5, None, {}, [7], [{}])],
    *[(CHAT, {"messages": [{"role": bad, "content": "x"}]}) for bad in ("wizard", None, 7, "")],
    (CHAT, {"messages": [{"role": "assistant"}]}),
    *[(CHAT, {"tools": bad}) for bad in ("none", [7], [{"type": "function"}], [{"type": "x"}])],
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    *[(CHAT, {"tool_choice": bad}) for bad in ("sometimes", 7, [])],
    *[(CHAT, {"response_format": bad}) for bad in ("text", {"type": "yaml"}, {})],
    *[(CHAT, {"logprobs": True, "top_logprobs": bad}) for bad in (21, -1, "1", True)],
    (CHAT, {"top_logprobs": 2}),
    *[(MESSAGES, {"messages": bad}) for bad in ([], "x", [7], [{}], [{"role": "user"}], None)],
    (MESSAGES, {"messages": [{"role": "system", "content": "x"}]}),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    *[(MESSAGES, {"system": bad}) for bad in (7, [7], [{"type": "image"}])],
    *[(MESSAGES, {"stop_sequences": bad}) for bad in ("x", [1], [""])],
    *[(MESSAGES, {"tools": bad}) for bad in ([{"name": "f"}], [{"type": "web_search_20250305"}])],
    *[(COMPLETIONS, {"prompt": bad}) for bad in (None, 5, [], [[]], [1, "a"], [True], [1.5], {})],
    (COMPLETIONS, {"prompt": [[1], "a"]}),
    (COMPLETIONS, {"logprobs": 21}),
]


@pytest.mark.parametrize("path, bad", CASES, ids=lambda v: str(v)[:60])
def test_wrong_values_are_422(live: Live, path: str, bad: dict[str, Any]) -> None:
    response = live.post(path, {**FINE[path], **bad})
    assert response.status_code == 422, response.text
    body = response.json()
    assert {"loc", "msg", "type"} <= body["detail"][0].keys()
    assert body["detail"][0]["loc"][0] == "body"
    assert body["error"]["type"] == "invalid_request_error"
    if path == MESSAGES:
        assert body["type"] == "error"
    else:
        assert {"message", "type", "param", "code"} == body["error"].keys()
    assert not live.engine.client.requests  # type: ignore[union-attr]


@pytest.mark.parametrize("path", FINE)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b"[]",
        b"null",
        b"42",
        b'{"messages": [',
        b"\xff\xfe{}",
        b'{"messages":[{"role":"user","content":"boat \\ud83d"}],"prompt":"\\ud83d"}',
        b'{"messages":[{"role":"user","content":"\xff"}],"prompt":"\xff"}',
        b'{"messages":[{"role":"user","content":"x"}],"prompt":"x","temperature":NaN}',
        b'{"messages":[{"role":"user","content":"x"}],"prompt":"x","temperature":1e999}',
        b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=lambda raw: raw[:24].decode(errors="replace"),
)
def test_bad_bytes_are_422(live: Live, path: str, raw: bytes) -> None:
    response = live.http.post(path, content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 422, response.text
    assert response.json()["detail"] and response.json()["error"]["message"]


@pytest.mark.parametrize("path", FINE)
def test_null_is_absent_for_every_optional_field(live: Live, path: str) -> None:
    schemas = live.http.get("/openapi.json").json()["components"]["schemas"]
    name = {CHAT: "ChatCompletionRequest", MESSAGES: "MessagesRequest"}.get(
        path, "CompletionRequest"
    )
    optional = set(schemas[name]["properties"]) - set(schemas[name]["required"])
    assert len(optional) > 8
    live.script.ends_after = 2
    response = live.post(path, {**dict.fromkeys(optional), **FINE[path]})
    assert response.status_code == 200, response.text
    for field in optional:
        response = live.post(path, {**FINE[path], field: None})
        assert response.status_code == 200, (field, response.text)


def test_unknown_and_repeated_fields_are_ignored(live: Live) -> None:
    raw = b'{"prompt":"a","prompt":"b","max_tokens":2,"store":true,"wibble":{"x":[1]}}'
    assert live.http.post(COMPLETIONS, content=raw, headers=JSON).status_code == 200


def test_a_million_faults_give_a_short_answer(live: Live) -> None:
    body = json.dumps({"messages": [7] * 1_000_000}).encode()
    response = live.http.post(CHAT, content=body, headers=JSON)
    assert response.status_code == 422 and len(response.content) < 4096


def test_values_are_not_echoed(live: Live) -> None:
    response = live.post(CHAT, {"messages": "a secret prompt", "temperature": "hidden"})
    assert "secret" not in response.text and "hidden" not in response.text


@pytest.mark.parametrize("path", FINE)
def test_a_body_far_over_the_limit_is_413_before_it_comes(live: Live, path: str) -> None:
    url = urlsplit(live.url)
    with socket.create_connection((url.hostname, url.port), timeout=60) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {10**11}\r\n\r\n".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", FINE)
def test_a_body_over_the_limit_is_413(live: Live, path: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 8_000_000}]}).encode()
    declared = live.http.post(path, content=body)
    chunked = live.http.post(path, content=iter([body[:5_000_000], body[5_000_000:]]))
    for response in (declared, chunked):
        assert response.status_code == 413, response.text
        assert response.json()["detail"]
    assert live.http.get("/health").json()["status"] == "ok"
