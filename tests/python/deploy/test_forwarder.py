"""Requests through the forwarder are answered as by the engines' servers, and end with their
clients."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fake_engine import FakeEngine
from forwarded_front import Front
from starlette.testclient import TestClient

from astrai.server import ServerSettings, create_app

HELLO = [{"role": "user", "content": "Hello"}]
REFUSED = [{"role": "user", "content": "refuse me"}]
CHAT = {"messages": HELLO, "max_tokens": 9}
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "chat stream": ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    "completion": ("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 9}),
    "messages stream": ("POST", "/v1/messages", {**CHAT, "stream": True}),
    "count": ("POST", "/v1/messages/count_tokens", {"messages": HELLO}),
    "models": ("GET", "/v1/models/astrai", None),
    "tokenize": ("POST", "/tokenize", {"messages": HELLO}),
    "wrong field": ("POST", "/v1/messages", {**CHAT, "max_tokens": "many"}),
    "refused by the template": (
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "refuse me"}]},
    ),
    "wrong method": ("GET", "/v1/messages", None),
    "no such route": ("GET", "/v1/nothing?a=b", None),
    "page": ("GET", "/", None),
}
_VARYING = re.compile(rb'"(?:created|id)":\s?(?:\d+|"[^"]*")')


@pytest.fixture(scope="module")
def direct() -> Iterator[TestClient]:
    with TestClient(create_app(FakeEngine(), ServerSettings())) as client:  # type: ignore[arg-type]
        yield client


@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_is_that_of_the_server_itself(
    front: Front, direct: TestClient, name: str
) -> None:
    method, path, body = REQUESTS[name]

    through = front.http.request(method, path, json=body)
    plain = direct.request(method, path, json=body)

    assert through.status_code == plain.status_code
    assert through.headers.get("content-type") == plain.headers.get("content-type")
    assert _frames_joined(through.content) == _frames_joined(plain.content)


def _frames_joined(content: bytes) -> Any:
    """The content without what differs between two equal requests; of a stream the text and the
    kinds of its events, which may come in fewer pieces when a client is slow."""
    content = _VARYING.sub(b'"id":0', content)
    if b"data: " not in content:
        return content
    text, kinds = "", []
    for line in content.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event.get("choices", ()):
            text += choice["delta"].get("content", "")
        text += event.get("delta", {}).get("text", "")
        kinds.append((event.get("type"), event.get("usage")))
    return text, list(dict.fromkeys(map(str, kinds)))


def test_the_official_clients_work_unmodified(front: Front) -> None:
    asked: Any = {"model": "astrai", "messages": HELLO, "max_tokens": 9}
    with openai_client(front) as client:
        chunks = client.chat.completions.create(**asked, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        whole = client.chat.completions.create(**asked).choices[0].message.content
    with anthropic_client(front) as other, other.messages.stream(**asked) as stream:
        streamed = "".join(stream.text_stream)

    assert text == whole == streamed == "Once ther"


def openai_client(front: Front) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{front.http.base_url}/v1", api_key="any", max_retries=0)


def anthropic_client(front: Front) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=str(front.http.base_url), api_key="any", max_retries=0)


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_goes_ends_its_request(front: Front, is_stream: bool) -> None:
    engines = front.engines.values()
    for engine in engines:
        engine.script.hold.set()  # nothing else would end the request
    body = json.dumps({**CHAT, "stream": is_stream}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    url = front.http.base_url

    with socket.create_connection((url.host, url.port or 80)) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        wait_until(lambda: any(engine.client.requests for engine in engines))

    wait_until(lambda: sum(engine.client.n_cancelled for engine in engines) == 1)


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it did not come about in a minute"
        time.sleep(0.01)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/completions"])
def test_an_engine_that_is_gone_before_its_answer_is_a_503_in_the_protocol_s_shape(
    front: Front, path: str
) -> None:
    front.dies_after = 0

    answer = front.post(path, {**CHAT, "prompt": "x", "stream": True})

    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert answer.json()["error"]["message"] == "the engine is gone"


def test_a_stream_whose_engine_goes_ends_with_an_error(front: Front) -> None:
    front.dies_after = 2
    asked: Any = {"model": "astrai", "messages": HELLO, "max_tokens": 9, "stream": True}

    with openai_client(front) as client, pytest.raises(openai.APIError, match="engine is gone"):
        list(client.chat.completions.create(**asked))
    with (
        anthropic_client(front) as other,
        pytest.raises(anthropic.APIError, match="engine is gone"),
    ):
        list(other.messages.create(**asked))


def test_a_half_written_document_breaks_the_connection(front: Front) -> None:
    front.dies_after = 1

    with pytest.raises(httpx.RemoteProtocolError):
        front.post("/v1/chat/completions", CHAT)


def test_a_replica_can_be_named(front: Front) -> None:
    for name in ("two", "two", "one"):
        front.post("/v1/chat/completions", CHAT, **{"x-astrai-replica": name})

    asked = [len(engine.client.requests) for engine in front.engines.values()]
    assert asked == [1, 2]
    assert all(request.route.is_strict for request in front.requests)


def test_replicas_tells_the_counters_of_each(front: Front) -> None:
    replicas = front.http.get("/replicas").json()["replicas"]

    assert {name: stats["active_tasks"] for name, stats in replicas.items()} == {"one": 0, "two": 0}


def test_without_a_key_nothing_is_told_and_no_prompt_is_read(
    start_front: Callable[..., Front],
) -> None:
    front = start_front(api_keys=("secret",))
    prompt = {"prompt": "x" * 100, "max_tokens": 1}

    assert front.http.get("/replicas").status_code == 401
    assert front.post("/v1/completions", prompt).status_code == 401
    assert front.requests[-1].route.page_keys == []
    allowed = front.post("/v1/completions", prompt, authorization="Bearer secret")
    assert allowed.status_code == 200
    assert len(front.requests[-1].route.page_keys) == 6


@pytest.mark.parametrize("n_bytes", [2_000, 20_000])
def test_a_body_beyond_the_limit_is_cut_and_refused(
    start_front: Callable[..., Front], n_bytes: int
) -> None:
    front = start_front(max_body_bytes=1024)

    answer = front.post("/v1/completions", {"prompt": "x" * n_bytes})

    assert answer.status_code == 413
    assert all(len(request.body) == 1025 for request in front.requests)


def test_the_inspector_stays_shut_behind_a_forwarder(front: Front) -> None:
    assert front.http.get("/debug/inspector").status_code == 403
