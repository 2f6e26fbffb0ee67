"""What operators rely on: request ids, the access log, deadlines, methods, proxies."""

from __future__ import annotations

import contextlib
import gc
import gzip
import io
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import openai
import pytest
import uvicorn
from fake_engine import FakeEngine
from live_server import Live

from astrai.cli.log_format import JsonFormatter
from astrai.server import runner
from astrai.server.access_log import AccessRecord
from astrai.server.answer import AnswerBlock

CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
LONG = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 500}


# Request ids


def test_every_answer_has_an_id_of_ours(live: Live) -> None:
    ids = {live.http.get("/health").headers["x-request-id"] for _ in range(3)}
    ids.add(live.http.get("/no/route").headers["request-id"])
    assert len(ids) == 4 and all(re.fullmatch(r"req_[0-9a-f]{24}", one) for one in ids)


def test_the_client_s_id_comes_back(live: Live) -> None:
    for path in (CHAT, MESSAGES, "/v1/no-such-route"):
        response = live.http.post(path, json=HELLO, headers={"x-request-id": "trace-7:a/b=c"})
        assert response.headers["x-request-id"] == "trace-7:a/b=c"
        assert response.headers["request-id"] == "trace-7:a/b=c"


@pytest.mark.parametrize("sent", ["", "a b", 'x"y', "é", "x" * 129, "<script>"])
def test_an_unfit_id_is_replaced(live: Live, sent: str) -> None:
    response = live.http.get("/health", headers={"x-request-id": sent.encode()})
    assert response.headers["x-request-id"].startswith("req_")


# Memory


def test_what_a_request_made_is_gone_without_the_collector(live: Live) -> None:
    """Circles would keep prompts and answers until it runs, and it stops the server for long."""

    def n_left() -> int:
        kinds = (AccessRecord, AnswerBlock)
        return sum(type(one) in kinds for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = n_left()
        headers = {"connection": "close"}  # a connection that stays open holds its last request
        for stream in (False, True):
            for path in (CHAT, MESSAGES):
                live.http.post(path, json={**HELLO, "stream": stream}, headers=headers)
            asked = {"input": "Hello", "stream": stream, "store": False}
            live.http.post("/v1/responses", json=asked, headers=headers)
        live.http.get("/health", headers=headers)
        end = time.monotonic() + 60
        while n_left() > before:  # the last answer is read before its request is over
            assert time.monotonic() < end, f"{n_left()} objects, {before} before"
            time.sleep(0.05)
    finally:
        gc.enable()


# Access log


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """The access lines, once there are some, as a collector of JSON logs would get them."""
    caplog.set_level(logging.INFO, "astrai.access")
    return lambda: [json.loads(JsonFormatter().format(r)) for r in access_records(caplog)]


def access_records(caplog: pytest.LogCaptureFixture, n: int = 1) -> list[logging.LogRecord]:
    """The access records, once there are n: one is written after the client has its last byte."""
    end = time.monotonic() + 60
    while True:
        records = [record for record in caplog.records if record.name == "astrai.access"]
        if len(records) >= n:
            return records
        assert time.monotonic() < end, f"{len(records)} of {n} access lines came"
        time.sleep(0.01)


def test_an_access_line_tells_tokens_and_times(
    live: Live, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    live.stream(CHAT, HELLO)
    (line,) = lines()
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert line["completion_tokens"] == 3 and line["finish_reason"] == "length"
    assert line["prompt_tokens"] > 0 and line["client"] == "127.0.0.1"
    assert 0 < line["first_byte_ms"] <= line["duration_ms"]
    assert line["level"] == "info" and re.fullmatch(r"[\dT:.-]{23}Z", line["time"])


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_log_never_holds_a_prompt(
    live: Live, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"messages": [{"role": "user", "content": "Zanzibar"}], "max_tokens": 3}
    live.post(path, secret)
    live.post(path, {**secret, "temperature": "Zanzibar"})
    live.post(path, {**secret, "max_tokens": 10**9, "stop": ["Zanzibar"]})
    live.http.post(path, content=b'{"messages": "Zanzibar', headers={"content-type": "text/plain"})
    access_records(caplog, 4)
    ours = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    for record in ours:
        assert "Zanzibar" not in record.getMessage() + json.dumps(getattr(record, "fields", {}))


def test_prompts_are_logged_when_asked_for(
    start_server: Callable[..., Live], lines: Callable[[], list[dict[str, Any]]]
) -> None:
    live = start_server(FakeEngine(), log_prompts=True)
    live.post(CHAT, {**HELLO, "messages": [{"role": "user", "content": "Zanzi\nbar"}]})
    (line,) = lines()
    assert json.loads(line["body"])["messages"][0]["content"] == "Zanzi\nbar"


def test_a_line_stays_one_line_whatever_the_path_holds(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "astrai.access")
    live.http.get("/v1/models/a%0Ab%1b%E2%80%A8" + "x" * 500)
    (record,) = access_records(caplog)
    assert len(record.getMessage().splitlines()) == 1 and len(record.getMessage()) < 400


# Deadlines


def test_a_request_past_its_deadline_is_given_up(live: Live) -> None:
    live.script.delay_s = 0.01
    for path, kind in ((CHAT, "timeout_error"), (MESSAGES, "timeout_error")):
        response = live.post(path, {**LONG, "deadline_ms": 100})
        assert response.status_code == 408
        assert response.json()["error"]["type"] == kind
        assert response.headers["x-should-retry"] == "false"
    live.wait_idle()
    assert live.engine is not None and live.engine.client.n_cancelled == 2


def test_a_deadline_holds_while_a_grammar_is_compiled(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live.engine is not None
    released = threading.Event()
    monkeypatch.setattr(live.engine.client, "compile_grammar", lambda _: released.wait(60))
    body = {**HELLO, "deadline_ms": 100, "response_format": {"type": "json_object"}}
    response = live.post(CHAT, body)
    assert response.status_code == 408 and not released.is_set()
    released.set()


def test_a_deadline_that_suffices_changes_nothing(live: Live) -> None:
    answer = live.post(CHAT, {**HELLO, "deadline_ms": 10_000}).json()
    assert answer["usage"]["completion_tokens"] == 3


def test_a_stream_past_its_deadline_ends_with_an_error_event(live: Live) -> None:
    live.script.delay_s = 0.01
    events = live.stream(CHAT, {**LONG, "deadline_ms": 200}).split("\n\n")
    assert events[-2] == "data: [DONE]"
    assert json.loads(events[-3][6:])["error"]["code"] == "deadline_exceeded"
    assert len(events) > 5, "what came before the deadline has been sent"
    text = live.stream(MESSAGES, {**LONG, "deadline_ms": 200})
    assert "event: error" in text and "timeout_error" in text


def test_the_server_s_own_limit_holds_for_all_requests(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), request_timeout_s=0.1)
    live.script.delay_s = 0.01
    assert live.post(COMPLETIONS, {"prompt": "x", "max_tokens": 400}).status_code == 408
    longer = {"prompt": "x", "max_tokens": 400, "deadline_ms": 60_000}
    assert live.post(COMPLETIONS, longer).status_code == 408


@pytest.mark.parametrize("deadline", [0, -1, 1.5, True, "100", 2**70])
def test_a_deadline_is_a_positive_whole_number(live: Live, deadline: Any) -> None:
    assert live.post(CHAT, {**HELLO, "deadline_ms": deadline}).status_code == 422


def test_the_official_clients_do_not_retry_a_missed_deadline(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "astrai.access")
    live.script.delay_s = 0.01
    oai = openai.OpenAI(base_url=live.url + "/v1", api_key="x", max_retries=2)
    with pytest.raises(openai.APIStatusError) as info:
        oai.chat.completions.create(**LONG, model="m", extra_body={"deadline_ms": 50})
    assert info.value.status_code == 408
    claude = anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=2)
    with pytest.raises(anthropic.APIStatusError):
        claude.messages.create(**LONG, model="m", extra_body={"deadline_ms": 50})
    assert [record.getMessage().split()[1:3] for record in access_records(caplog, 2)] == [
        [CHAT, "408"],
        [MESSAGES, "408"],
    ]


# Methods and content types


def test_head_answers_as_get_without_a_body(live: Live) -> None:
    for path in ("/health", "/ready", "/stats", "/metrics", "/v1/models", "/openapi.json"):
        response = live.http.head(path)
        assert response.status_code == 200 and response.content == b""
        assert response.headers["content-type"] == live.http.get(path).headers["content-type"]
    assert live.http.head("/v1/models/no-such-model").status_code == 404
    refused = live.http.head(CHAT)
    assert refused.status_code == 405 and refused.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, COMPLETIONS, "/tokenize"])
def test_a_form_of_a_web_page_cannot_reach_a_model(
    live: Live, path: str, content_type: str | None
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    response = live.http.post(path, content=json.dumps(HELLO).encode(), headers=headers)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]
    assert not live.engine.client.requests  # type: ignore[union-attr]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_may_carry_parameters(live: Live, content_type: str) -> None:
    body = json.dumps(HELLO).encode()
    response = live.http.post(CHAT, content=body, headers={"content-type": content_type})
    assert response.status_code == 200


def test_a_packed_body_is_refused_by_its_encoding(live: Live) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = gzip.compress(json.dumps(HELLO).encode())
    for path in (CHAT, MESSAGES):
        response = live.http.post(path, content=body, headers=headers)
        assert response.status_code == 415 and "'gzip'" in response.json()["error"]["message"]


# Proxies


@pytest.fixture(scope="module")
def prefixed(start_server: Callable[..., Live]) -> Live:
    return start_server(FakeEngine(), root_path="/llm", api_keys=("k",))


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_a_proxy_may_strip_the_root_path_or_leave_it(prefixed: Live, prefix: str) -> None:
    key = {"x-api-key": "k"}
    assert prefixed.http.get(prefix + "/health").status_code == 200
    assert prefixed.http.post(prefix + CHAT, json=HELLO, headers=key).status_code == 200
    refused = prefixed.http.post(prefix + MESSAGES, json=HELLO)
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"  # Anthropic's envelope
    assert prefixed.http.post(prefix + MESSAGES, json={}, headers=key).json()["type"] == "error"


def test_the_openapi_page_names_the_root_path(prefixed: Live) -> None:
    page = prefixed.http.get("/llm/openapi.json", headers={"x-api-key": "k"}).json()
    assert page["servers"] == [{"url": "/llm"}]


def test_a_page_may_send_credentials_only_when_allowed(start_server: Callable[..., Live]) -> None:
    ask = {"origin": "https://a.b", "access-control-request-method": "DELETE"}
    for allowed in (True, False):
        live = start_server(FakeEngine(), cors_origins=("https://a.b",), cors_credentials=allowed)
        headers = live.http.options(CHAT, headers=ask).headers
        assert headers["access-control-allow-origin"] == "https://a.b"
        assert ("access-control-allow-credentials" in headers) == allowed
        other = live.http.options(CHAT, headers={**ask, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


# Queue and keys


@pytest.mark.parametrize("_shared", [False], indirect=True)  # the fault is of this process
def test_a_full_queue_says_when_to_come_back(live: Live) -> None:
    live.script.queue_full = True
    for path in (CHAT, MESSAGES):
        for stream in (False, True):
            response = live.post(path, {**HELLO, "stream": stream})
            assert response.status_code == 429 and response.headers["retry-after"] == "3"
            assert response.json()["error"]["type"] == "rate_limit_error"


def test_either_header_opens_when_both_are_sent(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), api_keys=("right", "other"))

    def status(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return live.http.post(MESSAGES, json=HELLO, headers=named).status_code

    assert status(x_api_key="right", authorization="Bearer stale") == 200
    assert status(x_api_key="stale", authorization="Bearer other") == 200
    assert status(x_api_key="stale", authorization="Bearer stale") == 401
    assert status(authorization="Basic right") == 401
    assert status(x_api_key="righ") == 401 and status(x_api_key="righty") == 401
    raw = httpx.get(live.url + "/stats", headers=[("x-api-key", "a"), ("x-api-key", "right")])
    assert raw.status_code == 200


def draining_server(engine: Any = None, *, is_draining: bool = False) -> runner._DrainingServer:
    app: Any = SimpleNamespace(state=SimpleNamespace(draining=is_draining))
    return runner._DrainingServer(uvicorn.Config(app), app, engine, 10.0, lambda: None)


def wait_until(is_so: Callable[[], bool]) -> None:
    given_up_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < given_up_s
        time.sleep(0.01)


@pytest.mark.parametrize("drained_s, left_s", [(0.0, 10), (2.5, 8), (10.0, 0), (11.0, 0)])
def test_clients_that_do_not_read_get_no_second_drain(
    monkeypatch: pytest.MonkeyPatch, drained_s: float, left_s: int
) -> None:
    now = [100.0]
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def drain(timeout_s: float) -> bool:
        now[0] += drained_s
        return drained_s < timeout_s

    client = SimpleNamespace(drain=drain)
    server = draining_server(SimpleNamespace(client=client, shutdown=lambda: None))
    server._signalled_at = now[0]
    server._drain()
    assert server.config.timeout_graceful_shutdown == left_s + runner._GRACE_S


def test_a_signal_amid_a_log_line_is_obeyed_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = draining_server()

    class Terminal(io.RawIOBase):
        written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            if not self.written:  # within the lock of the buffer above, as a signal finds it
                server.handle_exit(signal.SIGTERM, None)
            self.written += bytes(data)
            return len(data)

    def log_until_drained(*_: object) -> None:
        logging.getLogger("astrai.access").warning("a request")
        wait_until(lambda: server.should_exit)

    terminal = Terminal()
    handler = logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(terminal)))
    monkeypatch.setattr(logging.getLogger("astrai"), "handlers", [handler])
    caplog.set_level(logging.INFO, "astrai.server")
    monkeypatch.setattr(uvicorn.Server, "run", log_until_drained)
    server.run()
    assert server._app.state.draining
    lines = terminal.written.decode().splitlines()
    assert {"a request", "SIGTERM: draining for up to 10 s"} <= {*lines}


def test_a_signal_that_cannot_be_obeyed_is_told_and_the_next_one_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = draining_server()
    left_with: SimpleQueue[int] = SimpleQueue()

    def signal_twice(*_: object) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(runner, "threading", SimpleNamespace())
            server.handle_exit(signal.SIGTERM, None)
            wait_until(lambda: "SIGTERM could not be obeyed" in caplog.text)
        server._signalled_at -= 1.0
        server.handle_exit(signal.SIGINT, None)
        assert left_with.get(timeout=60) == 128 + signal.SIGINT

    monkeypatch.setattr(runner, "os", SimpleNamespace(_exit=left_with.put))
    monkeypatch.setattr(uvicorn.Server, "run", signal_twice)
    server.run()


def test_a_second_signal_ends_a_server_whose_output_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = draining_server(is_draining=True)
    left_with: list[int] = []
    with open("/dev/full", "w") as gone:
        gone.write("what cannot be written")
        monkeypatch.setattr(runner, "sys", SimpleNamespace(stdout=gone, stderr=gone))
        monkeypatch.setattr(runner, "os", SimpleNamespace(_exit=left_with.append))
        with contextlib.suppress(OSError):  # where the real one would not have come back
            server._obey(signal.SIGTERM)
        assert left_with == [128 + signal.SIGTERM]
        with contextlib.suppress(OSError):
            gone.close()
