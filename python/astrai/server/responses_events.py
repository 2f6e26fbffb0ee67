"""The output of /v1/responses: items of an answer, whole or as events in their order.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from astrai.sampling import TokenLogprob
from astrai.server.answer import AnswerBlock
from astrai.server.openai_common import new_id
from astrai.server.sse import TextFrame, named_frame
from astrai.text.answer import AnswerEvent, CallArguments, CallBegin, CallEnd

_ID_PREFIXES = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}
_PART_TYPES = {"text": "output_text", "reasoning": "reasoning_text"}

Logprobs = list[dict[str, Any]]


def output_item(
    block: AnswerBlock, item_id: str, status: str, logprobs: Logprobs | None = None
) -> dict[str, Any]:
    """A block as an item; status: in_progress, completed or incomplete."""
    if block.kind == "call":
        return {
            "id": item_id,
            "type": "function_call",
            "status": status,
            "call_id": block.call_id,
            "name": block.name,
            "arguments": block.text,
        }
    content = [] if status == "in_progress" else [_part(block, logprobs)]
    if block.kind == "reasoning":
        return {"id": item_id, "type": "reasoning", "summary": [], "content": content}
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def item_id_of(block: AnswerBlock) -> str:
    return new_id(_ID_PREFIXES[block.kind])


def _part(block: AnswerBlock, logprobs: Logprobs | None) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _PART_TYPES[block.kind], "text": block.text}
    if block.kind == "text":
        part["annotations"] = []
        part["logprobs"] = logprobs or []
    return part


class ItemEvents:
    """The events of one streamed answer. Numbers every event of the stream."""

    def __init__(self, shape: Callable[[list[TokenLogprob]], Logprobs]) -> None:
        """shape: logprobs as the protocol shows them."""
        self._shape = shape
        self.items: list[dict[str, Any]] = []  # whole ones so far
        self._numbers = itertools.count()  # of the events
        self._open: AnswerBlock | None = None
        self._item_id = ""
        self._logprobs: Logprobs = []  # of the open item
        self._text_frame: TextFrame | None = None  # of the open block

    def frame(self, kind: str, **fields: Any) -> bytes:
        """One event of the stream."""
        return named_frame({"type": kind, "sequence_number": next(self._numbers), **fields})

    def text_frame(self, block: AnswerBlock) -> TextFrame | None:
        """The frame of more text of `block` without logprobs; None unless that is the open one, and
        not reasoning, whose tokens are counted."""
        if block is not self._open or block.kind != "text":
            return None
        if self._text_frame is None:
            self._text_frame = _NumberedFrame(
                self._text_delta(TextFrame.SLOT, []), self._numbers, block
            )
        return self._text_frame

    def tell(self, event: AnswerEvent, block: AnswerBlock) -> bytes:
        """The frames of one event of `block`, which ends the block before it."""
        if isinstance(event, CallEnd):
            return self.close("completed")
        frames = b""
        if block is not self._open:
            frames = self.close("completed") + self._begin(block)
        if isinstance(event, CallBegin):
            return frames
        place = self._place()
        if isinstance(event, CallArguments):
            kind = "response.function_call_arguments.delta"
            return frames + self.frame(kind, **place, delta=event.text)
        text = event.text  # type: ignore[union-attr]  # TextPiece or ReasoningPiece
        if block.kind == "reasoning":
            kind = "response.reasoning_text.delta"
            return frames + self.frame(kind, **place, content_index=0, delta=text)
        delta = self._text_delta(text, self._new_logprobs(block))
        return frames + named_frame({**delta, "sequence_number": next(self._numbers)})

    def close(self, status: str) -> bytes:
        """The end of the open item, if there is one."""
        block, self._open = self._open, None
        if block is None:
            return b""
        self._new_logprobs(block)  # of tokens that no text followed
        place = self._place()
        frames = b""
        if block.kind == "call":
            kind = "response.function_call_arguments.done"
            frames += self.frame(kind, **place, name=block.name, arguments=block.text)
        else:
            inner = {**place, "content_index": 0}
            if block.kind == "text":
                kind, more = "response.output_text.done", {"logprobs": self._logprobs}
            else:
                kind, more = "response.reasoning_text.done", {}
            frames += self.frame(kind, **inner, text=block.text, **more)
            part = _part(block, self._logprobs)
            frames += self.frame("response.content_part.done", **inner, part=part)
        item = output_item(block, self._item_id, status, self._logprobs)
        frames += self.frame(
            "response.output_item.done", output_index=place["output_index"], item=item
        )
        self.items.append(item)
        return frames

    def _text_delta(self, text: str, logprobs: Logprobs) -> dict[str, Any]:
        """The event of more text of the open item, but for its number."""
        return {
            "type": "response.output_text.delta",
            "sequence_number": 0,
            **self._place(),
            "content_index": 0,
            "delta": text,
            "logprobs": logprobs,
        }

    def _new_logprobs(self, block: AnswerBlock) -> Logprobs:
        """Those of the open block that no event has told."""
        new = self._shape(block.logprobs[len(self._logprobs) :])
        self._logprobs += new
        return new

    def _begin(self, block: AnswerBlock) -> bytes:
        self._open, self._item_id, self._logprobs = block, item_id_of(block), []
        self._text_frame = None
        empty = AnswerBlock(block.kind, "", block.name, block.call_id)
        item = output_item(empty, self._item_id, "in_progress")
        place = self._place()
        frames = self.frame(
            "response.output_item.added", output_index=place["output_index"], item=item
        )
        if block.kind == "call":
            return frames
        part = _part(empty, None)
        return frames + self.frame(
            "response.content_part.added", **place, content_index=0, part=part
        )

    def begin_empty_message(self) -> bytes:
        """An answer without a word is one empty message."""
        return self._begin(AnswerBlock("text"))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": len(self.items)}


class _NumberedFrame(TextFrame):
    """A frame that numbers its events, and keeps their text for the end of the block."""

    _NUMBER = b'"sequence_number":'

    def __init__(self, example: dict[str, Any], numbers: Iterator[int], block: AnswerBlock) -> None:
        """example: an event of block whose number is 0 and whose text is SLOT. numbers: those of
        the next events."""
        super().__init__(named_frame(example))
        self._numbers = numbers
        self._block = block
        self._head, _, rest = self._before.partition(self._NUMBER + b"0")
        self._before = rest

    def fill(self, text: str) -> bytes:
        self._block.text += text
        return self._head + self._NUMBER + b"%d" % next(self._numbers) + super().fill(text)
