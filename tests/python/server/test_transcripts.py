"""Whole event streams against stored transcripts, byte for byte but for ids and times."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from live_server import Live

TRANSCRIPTS = Path(__file__).parent / "transcripts"
HELLO = [{"role": "user", "content": "Hello"}]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 4}),
    "chat_include_usage": (
        "/v1/chat/completions",
        {"messages": HELLO, "max_tokens": 3, "stream_options": {"include_usage": True}},
    ),
    "chat_without_usage": (
        "/v1/chat/completions",
        {"messages": HELLO, "max_tokens": 3, "stream_options": {"include_usage": False}},
    ),
    "chat_stop": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 40, "stop": "ther"}),
    "chat_error": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 40}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 4}),
    "messages_stop": (
        "/v1/messages",
        {"messages": HELLO, "max_tokens": 40, "stop_sequences": ["never", "ther"]},
    ),
    "messages_error": ("/v1/messages", {"messages": HELLO, "max_tokens": 40}),
    "completions": ("/v1/completions", {"prompt": "Once", "max_tokens": 4}),
    "completions_ids": (
        "/v1/completions",
        {"prompt": [41, 72], "max_tokens": 2, "return_token_ids": True, "echo": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_stream_equals_its_transcript(live: Live, name: str) -> None:
    path, body = CASES[name]
    if name.endswith("_error"):
        live.script.fail_at = 3
    # A token is made when the event before it has arrived, so that no two are merged.
    live.script.permits = permits = threading.Semaphore(1)
    raw = ""
    with live.http.stream("POST", path, json={"stream": True, **body}) as response:
        for piece in response.iter_text():
            raw += piece
            permits.release()
    raw = re.sub(r'"(chatcmpl-|cmpl-|msg_)[0-9a-f]{24}"', r'"\1ID"', raw)
    raw = re.sub(r'"created":\d{10}', '"created":TIME', raw)
    assert raw == (TRANSCRIPTS / f"{name}.txt").read_text(encoding="utf-8")
