"""Answers as models of each family write them, and what they mean."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from astrai.text.answer import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    AnswerEvent,
    AnswerReading,
    AnswerSplitter,
    CallArguments,
    CallBegin,
    CallFault,
    ReasoningPiece,
    TextPiece,
)

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "where": {"type": "object"},
        },
        "required": ["city"],
    },
    "write-file": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": ["string", "null"]}},
    },
    "now": {},
}


@dataclass
class Meaning:
    """An answer read as a whole; calls as (name, value of the arguments)."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    faults: list[tuple[str, str | None]] = field(default_factory=list)


def meaning_of(events: list[AnswerEvent]) -> Meaning:
    found, raw_arguments = Meaning(), ""
    for event in events:
        if isinstance(event, TextPiece):
            assert event.text
            found.text += event.text
        elif isinstance(event, ReasoningPiece):
            assert event.text
            found.reasoning += event.text
        elif isinstance(event, CallFault):
            found.faults.append((event.reason, event.name))
        elif isinstance(event, CallBegin):
            raw_arguments = ""
            found.calls.append((event.name, None))
        elif isinstance(event, CallArguments):
            raw_arguments += event.text
        else:
            found.calls[-1] = (found.calls[-1][0], json.loads(raw_arguments))
    assert all(isinstance(arguments, dict) for _, arguments in found.calls)
    return found


def reading_of(tool_format: str | None, reasoning: str | None = None, **more: Any) -> AnswerReading:
    return AnswerReading(
        tool_format=TOOL_FORMATS[tool_format] if tool_format else None,
        tools=TOOLS,
        reasoning=REASONING_FORMATS[reasoning] if reasoning else None,
        **more,
    )


def split(reading: AnswerReading, *pieces: str) -> Meaning:
    splitter = AnswerSplitter(reading)
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return meaning_of(events + splitter.end())


OSLO = ("get_weather", {"city": "Oslo"})
TRICKY = 'a "quoted" </tool_call> [TOOL_CALLS] }]{ \\ <tool_call> é\u2028 )'

# (format, reasoning, text, what it means)
TRANSCRIPTS: dict[str, tuple[str | None, str | None, str, Meaning]] = {
    "hermes": (
        "hermes",
        None,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        Meaning(calls=[OSLO]),
    ),
    "hermes after text, two calls": (
        "hermes",
        None,
        'Let me look.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        Meaning("Let me look.", calls=[OSLO, ("now", {})]),
    ),
    "hermes with markers in strings": (
        "hermes",
        None,
        '<tool_call>{"name":"write-file","arguments":{"path":"x","text":'
        + json.dumps(TRICKY)
        + "}}</tool_call> done",
        Meaning("done", calls=[("write-file", {"path": "x", "text": TRICKY})]),
    ),
    "hermes, arguments first and a line end in a string": (
        "hermes",
        None,
        '<tool_call>{"arguments": {"city": "a\nb"}, "name": "get_weather"}</tool_call>',
        Meaning(calls=[("get_weather", {"city": "a\nb"})]),
    ),
    "hermes list in one tag": (
        "hermes",
        None,
        '<tool_call>[{"name": "now"}, {"name": "get_weather", "arguments": {"city": "Oslo"}}]'
        "</tool_call>",
        Meaning(calls=[("now", {}), OSLO]),
    ),
    "hermes objects in one tag, one bracket too many": (
        "hermes",
        None,
        '<tool_call>\n{"name": "now", "arguments": null}\n{"name": "get_weather", "arguments": '
        '{"city": "Oslo"}}}\n</tool_call>',
        Meaning(calls=[("now", {}), OSLO]),
    ),
    "hermes without its closing tag": (
        "hermes",
        None,
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}\n</tool',
        Meaning(calls=[OSLO]),
    ),
    "hermes without any tag": (
        "hermes",
        None,
        '\n{"name": "get_weather", "arguments": {"city": "Oslo"}}',
        Meaning(calls=[OSLO]),
    ),
    "hermes behind reasoning": (
        "hermes",
        "think",
        "<think>\nA <tool_call> is due.\n\nYes.\n</think>\n\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        Meaning(reasoning="A <tool_call> is due.\n\nYes.", calls=[OSLO]),
    ),
    "qwen3 coder": (
        "qwen3_coder",
        None,
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        Meaning("I look.", calls=[("get_weather", {"city": "Oslo", "days": 3})]),
    ),
    "qwen3 coder, tags and digits in a text": (
        "qwen3_coder",
        None,
        "<tool_call>\n<function=write-file>\n<parameter=path>\n12\n</parameter>\n<parameter=text>\n"
        "x </parameter> y\n\n</function>\n</parameter>\n</function>\n</tool_call>",
        Meaning(
            calls=[("write-file", {"path": "12", "text": "x </parameter> y\n\n</function>"})]
        ),
    ),
    "qwen3 coder without the outer tag": (
        "qwen3_coder",
        None,
        '<function=get_weather>\n<parameter=where>\n{"lat": 59.9, "on": true}\n</parameter>\n'
        "</function>\n<function=now>\n</function>",
        Meaning(calls=[("get_weather", {"where": {"lat": 59.9, "on": True}}), ("now", {})]),
    ),
    "llama 3": (
        "llama3_json",
        None,
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        Meaning(calls=[OSLO]),
    ),
    "llama 3 with its tag, two calls": (
        "llama3_json",
        None,
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; '
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        Meaning(calls=[("now", {}), OSLO]),
    ),
    "pythonic": (
        "pythonic",
        None,
        "[get_weather(city='Oslo'), write-file(path=\"a]b\", text='it\\'s )\\n'), now()]",
        Meaning(calls=[OSLO, ("write-file", {"path": "a]b", "text": "it's )\n"}), ("now", {})]),
    ),
    "pythonic values": (
        "pythonic",
        None,
        "[get_weather(city=None, days=-2, where={'a': [1.5, True, (false,)], \"b\": 'x' 'y'},)]",
        Meaning(
            calls=[
                (
                    "get_weather",
                    {
                        "city": None,
                        "days": -2,
                        "where": {"a": [1.5, True, [False]], "b": "xy"},
                    },
                )
            ]
        ),
    ),
    "mistral list": (
        "mistral",
        None,
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}, '
        '{"name": "now", "arguments": {}}]',
        Meaning(calls=[OSLO, ("now", {})]),
    ),
    "mistral apart": (
        "mistral",
        "mistral",
        '[THINK]Hm.[/THINK]Looking.[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}'
        "[TOOL_CALLS]now{}",
        Meaning("Looking.", "Hm.", [OSLO, ("now", {})]),
    ),
    "json": (
        "json",
        None,
        '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n{"name": "now"}',
        Meaning(calls=[OSLO, ("now", {})]),
    ),
    "json in a fence": (
        "json",
        None,
        '```json\n{"function": "get_weather", "arguments": {"city": "Oslo"}}\n```\n',
        Meaning(calls=[OSLO]),
    ),
    # No calls.
    "an answer in JSON": (
        "llama3_json",
        None,
        '{"city": "Oslo", "name": "get_weather"} is it. ',
        Meaning('{"city": "Oslo", "name": "get_weather"} is it. '),
    ),
    "an answer in JSON about a name": (
        "json",
        None,
        ' {"name": "Bob", "age": 3}\n',
        Meaning(' {"name": "Bob", "age": 3}\n'),
    ),
    "a list": ("pythonic", None, "[1, 2] and [x]", Meaning("[1, 2] and [x]")),
    "markers in prose": (
        "hermes",
        "think",
        "  Write <tool_call> and <think>x</think>, then </tool_call>. ",
        Meaning(
            "  Write <tool_call> and <think>x</think>, then </tool_call>. ",
            faults=[("malformed", None)],
        ),
    ),
    "reasoning only": (None, "think", "\n<think>\nHm.\n", Meaning(reasoning="Hm.")),
    "reasoning and text": (
        None,
        "think",
        "<think></think>\n\n Hello \n",
        Meaning("Hello \n"),
    ),
    # Faults: nothing is lost.
    "an unknown tool": (
        "hermes",
        None,
        'Hm. <tool_call>{"name": "rm", "arguments": {}}</tool_call> ok',
        Meaning(
            'Hm. <tool_call>{"name": "rm", "arguments": {}}</tool_call> ok',
            faults=[("unknown_tool", "rm")],
        ),
    ),
    "a malformed call, then a good one": (
        "hermes",
        None,
        "<tool_call>{'name': 'now'}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>",
        Meaning("<tool_call>{'name': 'now'}</tool_call>", calls=[("now", {})],
                faults=[("malformed", None)]),
    ),
    "arguments of the wrong kind": (
        "mistral",
        None,
        '[TOOL_CALLS][{"name": "now", "arguments": [1]}]',
        Meaning(
            '[TOOL_CALLS][{"name": "now", "arguments": [1]}]', faults=[("malformed", None)]
        ),
    ),
    "a number that JSON lacks": (
        "hermes",
        None,
        '<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>',
        Meaning(
            '<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>',
            faults=[("malformed", None)],
        ),
    ),
    "a call that is cut off": (
        "hermes",
        None,
        'So: \n<tool_call>{"name": "now", "arguments": {"x": "</tool_call>',
        Meaning(
            'So: \n<tool_call>{"name": "now", "arguments": {"x": "</tool_call>',
            faults=[("truncated", None)],
        ),
    ),
    "a cut-off call in tags": (
        "qwen3_coder",
        None,
        "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n</func",
        Meaning(
            "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n</func",
            faults=[("truncated", None)],
        ),
    ),
    "an unknown pythonic call": (
        "pythonic",
        None,
        "[get_weather(city='Oslo'), rm(path='/')]",
        Meaning("[get_weather(city='Oslo'), rm(path='/')]", faults=[("unknown_tool", "rm")]),
    ),
    "pythonic expressions are not run": (
        "pythonic",
        None,
        "[now(x=__import__('os').getcwd())]",
        Meaning("[now(x=__import__('os').getcwd())]", faults=[("malformed", None)]),
    ),
}  # fmt: skip
