"""Server-sent events: one `data:` line of JSON a frame, whatever characters the text holds.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"

# JSON escapes every control character below 0x20; these three are line ends to some readers
# (Python's str.splitlines among them) and legal unescaped in JSON. In UTF-8 their byte sequences
# occur nowhere else, and in JSON only inside strings.
_SEPARATORS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def encode_json(payload: Any) -> bytes:
    """JSON of payload on one line, line separators escaped."""
    encoded = orjson.dumps(payload)
    for raw, escaped in _SEPARATORS:
        if raw in encoded:
            encoded = encoded.replace(raw, escaped)
    return encoded


def frame(payload: Any) -> bytes:
    """An unnamed event (OpenAI)."""
    return b"data: " + encode_json(payload) + b"\n\n"


def named_frame(payload: dict[str, Any]) -> bytes:
    """An event named after payload["type"] (Anthropic)."""
    name: str = payload["type"]
    return b"event: " + name.encode() + b"\n" + frame(payload)


class TextFrame:
    """A frame of which one text varies: shaped once, filled in for each token of a stream."""

    SLOT = "\ue000"  # stands for the text in the frame to be copied

    def __init__(self, example: bytes) -> None:
        """example: a frame whose last SLOT is the text. Others may be what a client sent."""
        self._before, _, self._after = example.rpartition(encode_json(self.SLOT))

    def fill(self, text: str) -> bytes:
        # Most pieces are ASCII, which holds no separator.
        encoded = orjson.dumps(text) if text.isascii() else encode_json(text)
        return self._before + encoded + self._after
