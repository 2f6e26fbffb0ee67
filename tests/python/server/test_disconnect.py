"""Clients that go: their requests end, streamed or not, before the first token or after."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from live_server import Live

BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 500}


@pytest.fixture(autouse=True)
def _slow(live: Live) -> None:
    live.script.delay_s = 0.02  # 500 tokens take ten seconds


def assert_cancelled(live: Live, n_requests: int) -> None:
    engine = live.engine
    assert engine is not None and len(engine.client.requests) == n_requests
    live.wait_idle()
    assert engine.client.n_cancelled == n_requests


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_closed_stream_ends_its_request(live: Live, path: str) -> None:
    with live.http.stream("POST", path, json={**BODY, "stream": True}) as response:
        next(response.iter_lines())
    assert_cancelled(live, 1)


@pytest.mark.parametrize("stream, is_held", [(False, False), (False, True), (True, True)], ids=str)
def test_an_impatient_client_ends_its_request(live: Live, stream: bool, is_held: bool) -> None:
    if is_held:  # as in a full queue: no event comes at all
        live.script.hold.set()
    body = json.dumps({**BODY, "stream": stream, "n": 2}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    url = urlsplit(live.url)
    engine = live.engine
    assert engine is not None and url.hostname is not None and url.port is not None
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        end = time.monotonic() + 60
        while len(engine.client.requests) < 2 and time.monotonic() < end:
            time.sleep(0.01)
    assert_cancelled(live, 2)


def test_the_server_answers_while_requests_run(live: Live) -> None:
    with live.http.stream("POST", "/v1/messages", json={**BODY, "stream": True}) as response:
        lines = response.iter_lines()  # dropping it would close the stream
        next(lines)
        for _ in range(3):
            assert httpx.get(live.url + "/health").status_code == 200
            assert httpx.get(live.url + "/stats").json()["active_tasks"] == 1
            time.sleep(0.05)
    assert_cancelled(live, 1)
