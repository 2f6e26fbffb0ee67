"""The formats in which models write tool calls and reasoning, and which of them a template means.

A format is a description; adding one is adding an entry here and, if its calls are written in a way
that none of the readers knows, a `CallBody`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from astrai.text.answer.call_body import CallBody, Tools
from astrai.text.answer.json_calls import BareJsonBody, JsonBody
from astrai.text.answer.mistral_calls import MistralBody
from astrai.text.answer.python_calls import PythonBody
from astrai.text.answer.xml_calls import XmlBody

__all__ = [
    "REASONING_FORMATS",
    "TOOL_FORMATS",
    "ReasoningFormat",
    "ToolFormat",
    "detect_reasoning_format",
    "detect_tool_format",
]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = "<function="
_PYTHON_TAG = "<|python_tag|>"
_TOOL_CALLS = "[TOOL_CALLS]"
_BARE_JSON = ("{", "[", "```json", "```tool_call", "```\n")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes tool calls.

    markers: what opens a call anywhere in a text. bare: what may open one where the answer begins.
    body: makes the reader of a call that `opening`, one of them, has opened. special_markers:
    spellings that may be special tokens; their text must not be skipped then.
    call_id_length: letters and digits of a call's id where the template insists on their number.
    """

    name: str
    markers: tuple[str, ...]
    bare: tuple[str, ...]
    body: Callable[[Tools, str], CallBody]
    special_markers: tuple[str, ...] = ()
    call_id_length: int | None = None


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags around a model's reasoning."""

    name: str
    open: str
    close: str


def _hermes_body(tools: Tools, opening: str) -> CallBody:
    return JsonBody(tools, opening, _CLOSE) if opening == _OPEN else BareJsonBody(tools, opening)


def _qwen3_coder_body(tools: Tools, opening: str) -> CallBody:
    return XmlBody(tools, opening, _CLOSE)


def _llama3_body(tools: Tools, opening: str) -> CallBody:
    is_tag = opening == _PYTHON_TAG
    return JsonBody(tools, opening, "") if is_tag else BareJsonBody(tools, opening)


_TOOL_FORMATS = (
    ToolFormat("hermes", (_OPEN,), _BARE_JSON, _hermes_body, (_OPEN, _CLOSE)),
    ToolFormat("qwen3_coder", (_OPEN, _FUNCTION), (), _qwen3_coder_body, (_OPEN, _CLOSE)),
    ToolFormat("llama3_json", (_PYTHON_TAG,), _BARE_JSON, _llama3_body, (_PYTHON_TAG,)),
    ToolFormat("pythonic", (), ("[",), PythonBody),
    ToolFormat(
        "mistral",
        (_TOOL_CALLS,),
        (),
        MistralBody,
        (_TOOL_CALLS, "[ARGS]", "[CALL_ID]"),
        call_id_length=9,
    ),
    ToolFormat("json", (), _BARE_JSON, BareJsonBody),
)
TOOL_FORMATS = {entry.name: entry for entry in _TOOL_FORMATS}

_REASONING_FORMATS = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
)
REASONING_FORMATS = {entry.name: entry for entry in _REASONING_FORMATS}

# What a template's source holds -> the format it asks its model for; the first found counts.
_TOOL_SIGNS = (
    ("<function=", "qwen3_coder"),
    (_OPEN, "hermes"),
    (_TOOL_CALLS, "mistral"),
    ("func_name1(", "pythonic"),
    (_PYTHON_TAG, "llama3_json"),
    ('{"name": function name, "parameters":', "llama3_json"),
)


def detect_tool_format(sources: Iterable[str], *, reads_tools: bool) -> ToolFormat:
    """The format that a chat template, given by its sources, asks for.

    reads_tools: the template renders tools. One that does not is given an instruction in the
    format "hermes"; one that does and shows no known sign is taken to mean "json"."""
    text = "\n".join(sources)
    if not reads_tools:
        return TOOL_FORMATS["hermes"]
    for sign, name in _TOOL_SIGNS:
        if sign in text:
            return TOOL_FORMATS[name]
    return TOOL_FORMATS["json"]


def detect_reasoning_format(sources: Iterable[str]) -> ReasoningFormat | None:
    """The tags that a chat template handles, None when it knows of no reasoning."""
    text = "\n".join(sources)
    for entry in _REASONING_FORMATS:
        if entry.open in text or entry.close in text:
            return entry
    return None
