"""Clients that go: their requests end, streamed or not, before the first token or after."""

from __future__ import annotations

import time

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
    body = {**BODY, "stream": stream, "n": 2}
    timeout = httpx.Timeout(5, read=0.3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(live.url + "/v1/chat/completions", json=body, timeout=timeout)
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
