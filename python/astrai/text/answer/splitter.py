"""`AnswerSplitter`: generated text in, in any pieces; text, reasoning and tool calls out.

    begin --open tag--> reasoning --close tag--> begin
      |   `--bare call-----------------.
      v                                v
    text --marker of a call--------> call --well-formed--> begin, as behind a call
      ^---------- anything else -------'

A call is told once it is complete and known to be well formed: what is told cannot be taken back,
and a call that turns out to be none has to become text again. The events joined do not depend on
how the text was cut. White space around calls and reasoning is layout and left out; otherwise
every character is in an event. One splitter reads one answer; it is not thread safe.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from astrai.text.answer.call_body import CallBody, Calls, Refusal, Tools
from astrai.text.answer.events import (
    AnswerEvent,
    CallArguments,
    CallBegin,
    CallEnd,
    CallFault,
    ReasoningPiece,
    TextPiece,
)
from astrai.text.answer.formats import ReasoningFormat, ToolFormat

__all__ = ["AnswerReading", "AnswerSplitter"]

_SPACE = " \t\r\n"
_BEHIND_A_CALL = re.compile(r"[ \t\r\n;,]*")


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """How to read an answer.

    tool_format: None where no call is looked for. tools: what may be called. reasoning: None where
    none is looked for. is_reasoning: the prompt has opened the reasoning already.
    first_call_only: further calls are dropped.
    """

    tool_format: ToolFormat | None = None
    tools: Tools = field(default_factory=dict)
    reasoning: ReasoningFormat | None = None
    is_reasoning: bool = False
    first_call_only: bool = False


class AnswerSplitter:
    """Splits one answer. Feed its text in order, then call end() once."""

    def __init__(self, reading: AnswerReading) -> None:
        self._reading = reading
        self._format = reading.tool_format if reading.tools else None
        markers = self._format.markers if self._format is not None else ()
        self._markers = markers
        self._any_marker = re.compile("|".join(map(re.escape, markers)) or r"(?!)")
        self._stops_text = _stops(markers)
        self._stops_reasoning = _stops((reading.reasoning.close,) if reading.reasoning else ())
        # What a piece must not hold to pass; None while nothing passes.
        self._stops: re.Pattern[str] | None = None
        self._raw = ""  # what no event has told and no decision has passed
        self._space = ""  # white space that is told with the text behind it, or never
        self._step: Callable[[], bool] = self._reason if reading.is_reasoning else self._begin
        self._body: CallBody | None = None
        self._opening = ""
        self._is_layout = False  # white space here belongs to no text
        self._has_reasoned = False
        self._n_calls = 0
        self._is_end = False
        self._events: list[AnswerEvent] = []

    def feed(self, text: str) -> list[AnswerEvent]:
        """What is certain after the next piece of the answer."""
        self._raw += text
        return self._run()

    def passes(self, text: str) -> bool:
        """Would `feed` tell this text, which is not empty, at once and unchanged, as more of what
        it told last? Such a piece need not be fed."""
        stops = self._stops
        return stops is not None and not self._raw and not self._space and not stops.search(text)

    def end(self) -> list[AnswerEvent]:
        """The rest: a call that is not complete becomes text."""
        self._is_end = True
        events = self._run()
        if self._space and not self._is_layout:
            events.append(TextPiece(self._space))
        return events

    def _run(self) -> list[AnswerEvent]:
        while self._raw and self._step():
            pass
        events, self._events = self._events, []
        return events

    # Steps: True when there may be more to do with what is left of _raw.

    def _begin(self) -> bool:
        """Where an answer, or what follows its reasoning or a call, begins."""
        stripped = self._raw.lstrip(_SPACE)
        if not self._is_layout:
            self._space += self._raw[: len(self._raw) - len(stripped)]
        self._raw = stripped
        if not stripped:
            return False
        reasoning = self._reading.reasoning
        if reasoning is not None and not self._n_calls:
            if stripped.startswith(reasoning.open):
                self._raw = stripped[len(reasoning.open) :]
                self._space = ""
                return self._go(self._reason)
            if self._may_become(reasoning.open):
                return False
        if self._format is not None:
            behind = _BEHIND_A_CALL.match(stripped) if self._n_calls else None
            n_between = behind.end() if behind is not None else 0
            rest = stripped[n_between:]
            for opening in self._format.bare:
                if rest.startswith(opening):
                    self._raw = rest
                    return self._open(opening)
                if opening.startswith(rest) and not self._is_end:
                    return False
        return self._go(self._read_text)

    def _read_text(self) -> bool:
        found = self._any_marker.search(self._raw)
        if found is not None:
            self._tell_text(self._raw[: found.start()])
            self._raw = self._raw[found.start() :]
            return self._open(found.group())
        n_held = 0 if self._is_end else _longest_beginning(self._raw, self._markers)
        end = len(self._raw) - n_held
        self._tell_text(self._raw[:end])
        self._raw = self._raw[end:]
        return False

    def _reason(self) -> bool:
        reasoning = self._reading.reasoning
        assert reasoning is not None
        at = self._raw.find(reasoning.close)
        if at >= 0:
            self._tell_reasoning(self._raw[:at])
            self._raw = self._raw[at + len(reasoning.close) :]
            self._space = ""
            self._is_layout = True
            return self._go(self._begin)
        n_held = 0 if self._is_end else _longest_beginning(self._raw, (reasoning.close,))
        end = len(self._raw) - n_held
        self._tell_reasoning(self._raw[:end])
        self._raw = self._raw[end:]
        self._is_layout = True  # its trailing white space
        return False

    def _read_call(self) -> bool:
        assert self._body is not None
        verdict = self._body.scan(self._raw, self._is_end)
        if verdict is None:
            if not self._is_end:
                return False
            verdict = Refusal("truncated", len(self._raw))
        if isinstance(verdict, Calls):
            self._tell_calls(verdict)
            self._raw = self._raw[verdict.end :]
            return self._go(self._begin)
        # Never less than the opening, which would else be found again.
        end = max(verdict.end, len(self._opening))
        self._tell_text(self._raw[:end])
        if verdict.reason is not None:
            self._events.append(CallFault(verdict.reason, verdict.name))
        self._raw = self._raw[end:]
        return self._go(self._read_text)

    def _go(self, step: Callable[[], bool]) -> bool:
        self._step, self._stops = step, None
        return True

    def _open(self, opening: str) -> bool:
        assert self._format is not None
        self._opening = opening
        self._body = self._format.body(self._reading.tools, opening)
        return self._go(self._read_call)

    def _may_become(self, marker: str) -> bool:
        return marker.startswith(self._raw) and not self._is_end

    def _tell_text(self, text: str) -> None:
        text = self._space + text
        told = text.rstrip(_SPACE)
        self._space = text[len(told) :]
        if told:
            self._is_layout = False
            self._stops = self._stops_text
            self._events.append(TextPiece(told))

    def _tell_reasoning(self, text: str) -> None:
        text = self._space + text
        told = text.rstrip(_SPACE)
        self._space = text[len(told) :]
        if not self._has_reasoned:
            told = told.lstrip(_SPACE)
        if told:
            self._has_reasoned = True
            self._stops = self._stops_reasoning
            self._events.append(ReasoningPiece(told))

    def _tell_calls(self, verdict: Calls) -> None:
        for call in verdict.calls:
            if self._n_calls and self._reading.first_call_only:
                break
            self._n_calls += 1
            self._events += [CallBegin(call.name), CallArguments(call.arguments), CallEnd()]
        self._space = ""
        self._is_layout = True


def _stops(markers: tuple[str, ...]) -> re.Pattern[str]:
    """What may begin a marker, and white space that the next piece may turn into layout."""
    begins = re.escape("".join(marker[0] for marker in markers))
    return re.compile(rf"[{begins}]|[{_SPACE}]\Z" if begins else rf"[{_SPACE}]\Z")


def _longest_beginning(text: str, markers: tuple[str, ...]) -> int:
    """Length of the longest end of text that a marker begins with, short of a whole one."""
    longest = max(map(len, markers), default=1) - 1
    for at in range(max(0, len(text) - longest), len(text)):
        if any(marker[0] == text[at] and marker.startswith(text[at:]) for marker in markers):
            return len(text) - at
    return 0
