"""Frames that go to their sockets around the application's layers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from live_server import Live

from astrai import _C
from astrai.server import connection
from astrai.server.connection import StepWriter, StreamSocket, stream_socket
from astrai.server.openai_chat import OpenAIResponseBuilder
from astrai.server.sse import TextFrame

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 60}
BODIES = {
    "/v1/chat/completions": {**CHAT, "n": 2},
    "/v1/completions": {"prompt": ["Hello", "Good day"], "max_tokens": 60},
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "Hello", "max_output_tokens": 60},
}


class Sends:
    """Counts the payloads that are sent around the layers."""

    def __init__(self) -> None:
        self.n_payloads = 0

    def __call__(self, fds: list[int], payloads: list[bytes]) -> list[tuple[int, bytes]]:
        self.n_payloads += len(payloads)
        return _C.send_http_chunks(fds, payloads)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Sends:
    counter = Sends()
    monkeypatch.setattr(connection, "_C", type("Core", (), {"send_http_chunks": counter}))
    return counter


def whole_text(stream: str) -> dict[str, str]:
    """The text of each choice of a stream, of whatever protocol."""
    texts: dict[str, str] = {}
    for line in re.findall(r"^data: (\{.*)$", stream, re.M):
        event = json.loads(line)
        delta = event.get("delta")
        if isinstance(delta, dict):
            delta = delta.get("text")
        if isinstance(delta, str):
            texts["0"] = texts.get("0", "") + delta
        for choice in event.get("choices", ()):
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            texts[str(choice["index"])] = texts.get(str(choice["index"]), "") + (piece or "")
    return texts


@pytest.mark.parametrize("path", BODIES)
def test_events_go_to_the_socket_and_both_ways_make_one_text(
    live: Live, sends: Sends, path: str
) -> None:
    live.script.delay_s = 0.002
    live.script.text = 'Tab\t, "quotes", \u00e9\u2028\U0001f98a\n' * 9
    texts = whole_text(live.stream(path, BODIES[path]))
    n_choices = 2 if path.endswith("completions") else 1
    expected = live.script.text.encode()[:60].decode(errors="ignore")
    assert texts == {str(i): expected for i in range(n_choices)}
    assert sends.n_payloads > 20 * n_choices


@pytest.mark.parametrize("more", [{"logprobs": True}, {"return_token_ids": True}], ids=str)
def test_what_events_tell_beside_text_is_kept(
    live: Live, sends: Sends, more: dict[str, Any]
) -> None:
    live.script.delay_s = 0.002
    events = re.findall(r"^data: (\{.*)$", live.stream("/v1/chat/completions", CHAT | more), re.M)
    chunks = [c for event in events for c in json.loads(event)["choices"]]
    if "logprobs" in more:
        entries = [e for c in chunks if c.get("logprobs") for e in c["logprobs"]["content"]]
        assert "".join(entry["token"] for entry in entries) == live.script.text[:60]
    else:
        assert sum(len(chunk.get("token_ids", ())) for chunk in chunks) == 60
    assert sends.n_payloads > 20


def test_a_stream_that_breaks_ends_with_an_error_and_no_other_does(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(TextFrame):
        def fill(self, text: str) -> bytes:
            raise ValueError("broken")

    frame = Broken(b'"\xee\x80\x80"')
    live.script.delay_s = 0.002
    with monkeypatch.context() as patch:
        patch.setattr(OpenAIResponseBuilder, "text_frame", lambda *_: frame)
        stream = live.stream("/v1/chat/completions", CHAT)
    assert "internal server error" in stream and stream.endswith("data: [DONE]\n\n")
    live.wait_idle()
    assert whole_text(live.stream("/v1/chat/completions", CHAT))["0"] == live.script.text[:60]


def test_a_client_of_http_1_0_is_served_through_the_layers(live: Live, sends: Sends) -> None:
    body = json.dumps({**CHAT, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n"
    url = urlsplit(live.url)
    answer = b""
    with socket.create_connection((url.hostname, url.port), timeout=30) as client:
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        while part := client.recv(65536):
            answer += part
    assert b"data: [DONE]\n\n" in answer
    assert sends.n_payloads == 0


def test_keep_alive_connections_serve_one_stream_after_another(live: Live, sends: Sends) -> None:
    live.script.delay_s = 0.002
    streams = [live.stream("/v1/completions", {"prompt": "a", "max_tokens": 9}) for _ in range(3)]
    assert {whole_text(stream)["0"] for stream in streams} == {live.script.text[:9]}
    assert sends.n_payloads > 9


def exchange(live: Live, parts: list[bytes]) -> bytes:
    """The answer to bytes that are sent part by part. Of a server that reads them no further the
    client may see a broken connection in its place."""
    url = urlsplit(live.url)
    answer = b""
    with socket.create_connection((url.hostname, url.port), timeout=30) as client:
        try:
            for part in parts:
                client.sendall(part)
                time.sleep(0.002)  # no read of the server takes two parts whole
            while piece := client.recv(65536):
                answer += piece
        except ConnectionError:
            pass
    return answer


GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"Connection: close\r\n\r\n"


@pytest.mark.parametrize(
    "endless",
    [[GET], [GET, b"a: "], [b"GET /"], [POST, b"2\r\n{}\r\n0\r\n"], [POST, b"2;"]],
    ids=["headers", "a header", "a path", "trailers", "a chunk"],
)
def test_no_head_is_read_without_end(live: Live, endless: list[bytes]) -> None:
    lines = endless[-1].endswith(b"\n")
    parts = [b"b: " + b"c" * 1000 + b"\r\n" if lines else b"c" * 1000] * 400
    assert b" 200 " not in exchange(live, endless + parts)
    assert live.http.get("/health").status_code == 200


@pytest.fixture
def short_wait_s(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(connection, "_HEAD_S", 1.0)
    return 1.0


@pytest.mark.parametrize(
    "begun, answer",
    [
        ([], b""),
        ([b"G"], b"HTTP/1.1 408 Request Timeout\r\n"),
        ([GET, b"a: b\r\n"], b"HTTP/1.1 408 Request Timeout\r\n"),
        ([GET + b"\r\n", GET], b"HTTP/1.1 200 OK\r\n"),
    ],
    ids=["nothing", "a letter", "lines", "behind another"],
)
def test_no_head_is_waited_for_without_end(
    live: Live, short_wait_s: float, begun: list[bytes], answer: bytes
) -> None:
    assert exchange(live, begun)[: len(answer) or None] == answer


def test_a_head_that_comes_drop_by_drop_is_not_waited_for(live: Live, short_wait_s: float) -> None:
    drops = [b"a: b\r\n"] * int(short_wait_s / 0.001)  # each takes 2 ms
    assert b" 200 " not in exchange(live, [GET, *drops, END])


def test_a_head_that_takes_its_time_is_served(live: Live) -> None:
    parts = [(GET + END)[i : i + 1] for i in range(len(GET + END))]
    assert exchange(live, parts).startswith(b"HTTP/1.1 200 OK")


def test_neither_bodies_nor_answers_end_by_the_limit_of_heads(
    live: Live, short_wait_s: float
) -> None:
    n_tokens = 60
    live.script.delay_s = 2 * short_wait_s / n_tokens
    body = json.dumps({"prompt": "a", "max_tokens": n_tokens, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    url = urlsplit(live.url)
    with socket.create_connection((url.hostname, url.port), timeout=30) as client:
        received = client.makefile("rb")
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        time.sleep(2 * short_wait_s)
        client.sendall(body)
        assert received.readline() == b"HTTP/1.1 200 OK\r\n"
        client.sendall(GET)  # half of the next head, which nobody waits for yet
        assert received.read().count(b"data: [DONE]\n\n") == 1


@pytest.mark.parametrize("n_pieces", [1, 5])
def test_connections_are_kept_longer_than_the_limit_of_heads(
    live: Live, short_wait_s: float, n_pieces: int
) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    first = POST.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n")
    pieces = [first, b"%x\r\n" % len(body), body, b"\r\n", b"0\r\n\r\n"]
    if n_pieces == 1:
        pieces = [b"".join(pieces)]
    url = urlsplit(live.url)
    with socket.create_connection((url.hostname, url.port), timeout=30) as client:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.01)  # a read of the server for each
        assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")
        time.sleep(2 * short_wait_s)
        client.sendall(GET + END)
        assert client.makefile("rb").read().count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_is_noticed_behind_requests_that_wait(live: Live, stream: bool) -> None:
    live.script.delay_s = 0.01
    n_before = live.wait_idle()["total_tasks"]
    body = json.dumps({"prompt": "a", "max_tokens": 3000, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    url = urlsplit(live.url)
    with socket.create_connection((url.hostname, url.port), timeout=30) as client:
        client.sendall(request + request)
        while not live.http.get("/stats").json()["active_tasks"]:
            time.sleep(0.01)
    assert live.wait_idle()["total_tasks"] == n_before + 1


def test_long_heads_and_many_requests_of_one_connection_are_served(live: Live) -> None:
    cookie = b"Cookie: " + b"c" * 30_000 + b"\r\n"
    heads = [GET + cookie + b"\r\n"] * 9 + [GET + cookie + END]
    assert exchange(live, heads).count(b"HTTP/1.1 200 OK") == 10


def test_a_server_that_tells_no_transport_is_written_to_through_the_layers() -> None:
    scope = {"type": "http", "http_version": "1.1"}
    assert stream_socket(scope, StepWriter()) is None


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.WriteTransport, socket.socket]]:
    """A transport whose socket holds little, and the client's end."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    try:
        yield transport, theirs
    finally:
        transport.close()
        theirs.close()


def socket_of(transport: asyncio.WriteTransport, writer: StepWriter, **scope: Any) -> Any:
    told = {"astrai.transport": {"transport": transport}}
    whole = {"http_version": "1.1", "extensions": told, **scope}
    return stream_socket(whole, writer)


def test_a_slow_client_gets_all_in_order_through_the_transport() -> None:
    async def main() -> None:
        writer = StepWriter()
        async with connected() as (transport, client):
            stream: StreamSocket = socket_of(transport, writer)
            n_sent = 0
            while stream.is_clear():
                for _ in range(3):
                    stream.send(b"%06d" % n_sent * 100)
                    n_sent += 1
                writer.flush()
            expected = b"".join(b"258\r\n%b\r\n" % (b"%06d" % i * 100) for i in range(n_sent))
            received = b""
            while len(received) < len(expected):
                received += await asyncio.get_running_loop().sock_recv(client, 65536)
            assert received == expected
            for _ in range(5):
                await asyncio.sleep(0)
            assert stream.is_clear()

    asyncio.run(main())


def test_a_closed_connection_is_not_clear_and_a_broken_one_is_noticed_by_the_transport() -> None:
    async def main() -> None:
        writer = StepWriter()
        async with connected() as (transport, client):
            stream: StreamSocket = socket_of(transport, writer)
            client.close()
            stream.send(b"lost")
            writer.flush()
            for _ in range(5):
                await asyncio.sleep(0)
            assert transport.is_closing() and not stream.is_clear()

    asyncio.run(main())


def test_only_plain_http_1_1_has_a_stream_socket_whatever_a_proxy_says() -> None:
    async def main() -> None:
        async with connected() as (transport, _):
            assert socket_of(transport, StepWriter(), scheme="https") is not None
            assert socket_of(transport, StepWriter(), http_version="1.0") is None
        encrypted: Any = SimpleNamespace(get_extra_info={"sslcontext": object()}.get)
        assert socket_of(encrypted, StepWriter(), scheme="http") is None

    asyncio.run(main())


def test_the_core_refuses_lists_that_do_not_match() -> None:
    with pytest.raises(ValueError, match="1 fds for 0 payloads"):
        _C.send_http_chunks([0], [])


def test_payloads_live_while_the_core_sends_them_whatever_becomes_of_their_list() -> None:
    sent = [bytes([i]) * (1 << 22) for i in range(32)]  # whose memory goes when they do
    payloads = [bytes(bytearray(payload)) for payload in sent]
    begun = threading.Event()

    def clear() -> None:
        begun.wait()
        payloads.clear()

    thread = threading.Thread(target=clear)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the other thread runs when the core lets go of the lock, not before
    ours, theirs = socket.socketpair()
    try:
        with ours, theirs:
            begun.set()
            unsent = _C.send_http_chunks([ours.fileno()] * len(sent), payloads)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert not payloads
    assert [rest for idx, rest in unsent if idx > 0] == [
        b"400000\r\n" + payload + b"\r\n" for payload in sent[1:]
    ]
