"""What a generated text is made of, as events in its order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AnswerEvent",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "CallFault",
    "FaultReason",
    "ReasoningPiece",
    "TextPiece",
]

FaultReason = Literal["malformed", "truncated", "unknown_tool"]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Text that the model wrote while thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call; its arguments follow until CallEnd."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A fragment of a call's arguments; joined they are the JSON text of an object."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of the call that began last."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """What looked like a call is none; its text comes as TextPiece. name: as far as it is known."""

    reason: FaultReason
    name: str | None = None


AnswerEvent = TextPiece | ReasoningPiece | CallBegin | CallArguments | CallEnd | CallFault
