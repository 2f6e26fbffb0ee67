"""`Answer`: one choice's text as blocks of text, reasoning and tool calls. Knows no protocol."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from astrai.sampling import TokenLogprob
from astrai.text.answer import (
    AnswerEvent,
    AnswerSplitter,
    CallArguments,
    CallBegin,
    CallFault,
    ReasoningPiece,
    TextPiece,
)

log = logging.getLogger("astrai.server")


@dataclass(slots=True)
class AnswerBlock:
    """Consecutive text of one kind. text: of a call, the JSON text of its arguments. call_idx: how
    many calls come before this one. logprobs: of the tokens up to the text, where this is one."""

    kind: Literal["text", "reasoning", "call"]
    text: str = ""
    name: str = ""
    call_id: str = ""
    call_idx: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)


class Answer:
    """What a choice says, in blocks. Without a splitter everything is text."""

    def __init__(
        self,
        splitter: AnswerSplitter | None = None,
        new_call_id: Callable[[], str] = lambda: "",
        faults_seen: Counter[str] | None = None,
    ) -> None:
        """new_call_id: gives each call its id. faults_seen: counts the faults of all answers."""
        self._splitter = splitter
        self._new_call_id = new_call_id
        self._faults_seen = faults_seen
        self.blocks: list[AnswerBlock] = []
        self.faults: list[CallFault] = []
        # Of the last add(): events, each with the block it belongs to; faults are not among them.
        self.news: list[tuple[AnswerEvent, AnswerBlock]] = []

    @property
    def open_kind(self) -> Literal["text", "reasoning", "call"] | None:
        """The kind of block that text which `passes` goes on with; None where it would begin one
        of a kind that is not known."""
        if self.blocks:
            return self.blocks[-1].kind
        return "text" if self._splitter is None else None

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if block.kind == "text")

    @property
    def reasoning(self) -> str:
        return "".join(block.text for block in self.blocks if block.kind == "reasoning")

    @property
    def calls(self) -> list[AnswerBlock]:
        return [block for block in self.blocks if block.kind == "call"]

    def passes(self, text: str) -> bool:
        """Is this next piece just more text of `open_kind`? Then `add` may be spared it, as far as
        nobody asks for the block's whole text."""
        return text != "" and (self._splitter is None or self._splitter.passes(text))

    def add(self, text: str, is_end: bool) -> None:
        """Take the next piece of the generated text; is_end: nothing follows."""
        self.news = []
        if self._splitter is None:
            if text:
                block = self._block("text")
                block.text += text
                self.news.append((TextPiece(text), block))
            return
        events: list[AnswerEvent] = self._splitter.feed(text) if text else []
        if is_end:
            events += self._splitter.end()
        for event in events:
            if isinstance(event, CallFault):
                self._note(event)
            else:
                self.news.append((event, self._take(event)))

    def _take(self, event: AnswerEvent) -> AnswerBlock:
        """Add an event to the block it belongs to."""
        if isinstance(event, CallBegin):
            call_id, call_idx = self._new_call_id(), len(self.calls)
            self.blocks.append(AnswerBlock("call", "", event.name, call_id, call_idx))
        elif isinstance(event, TextPiece):
            self._block("text").text += event.text
        elif isinstance(event, ReasoningPiece):
            self._block("reasoning").text += event.text
        elif isinstance(event, CallArguments):
            self.blocks[-1].text += event.text
        return self.blocks[-1]

    def _note(self, fault: CallFault) -> None:
        self.faults.append(fault)
        if self._faults_seen is not None:
            self._faults_seen[fault.reason] += 1
        log.warning("a tool call is returned as text: %s", fault.reason)

    def _block(self, kind: Literal["text", "reasoning"]) -> AnswerBlock:
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(AnswerBlock(kind))
        return self.blocks[-1]


def call_faults(answer: Answer) -> list[dict[str, Any]]:
    """What clients are told of calls that came as text: our own field of an answer."""
    return [{"reason": fault.reason, "name": fault.name} for fault in answer.faults]
