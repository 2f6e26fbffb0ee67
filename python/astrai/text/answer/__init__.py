"""Reading what a model wrote: text, reasoning and tool calls. Pure; knows no engine, no protocol.

`AnswerSplitter` is the machine, `formats` says what families write, `*_calls` read one call each.
"""

from __future__ import annotations

from astrai.text.answer.events import (
    AnswerEvent,
    CallArguments,
    CallBegin,
    CallEnd,
    CallFault,
    FaultReason,
    ReasoningPiece,
    TextPiece,
)
from astrai.text.answer.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
    detect_reasoning_format,
    detect_tool_format,
)
from astrai.text.answer.splitter import AnswerReading, AnswerSplitter

__all__ = [
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "AnswerEvent",
    "AnswerReading",
    "AnswerSplitter",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "CallFault",
    "FaultReason",
    "ReasoningFormat",
    "ReasoningPiece",
    "TextPiece",
    "ToolFormat",
    "detect_reasoning_format",
    "detect_tool_format",
]
