"""What a chat template can express, found out by rendering short conversations.

Templates do not declare what they read; the text that they render tells."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["TemplateTraits", "probe_template"]

# render(messages, tools, arguments_as_text) -> prompt text; raises ValueError where it refuses.
Render = Callable[[list[dict[str, Any]], "list[dict[str, Any]] | None", bool], str]

_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}
_USER = {"role": "user", "content": "probe"}
_CALL_ID = "probe0001"  # nine letters and digits: Mistral's templates insist
_JSON_ARGUMENTS = re.compile(r'(?<!\\)"probe_key"\s*:\s*"probe_value"')


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """reads_system: a system message is rendered. reads_tools: tool definitions are.
    reads_calls: an assistant's tool calls and the tools' results are. wants_text_arguments: a
    call's arguments have to be JSON text, not an object. takes_parallel_calls: a turn may hold
    several calls."""

    reads_system: bool
    reads_tools: bool
    reads_calls: bool
    wants_text_arguments: bool
    takes_parallel_calls: bool = True


def probe_template(render: Render) -> TemplateTraits:
    """The traits of the template behind `render`."""
    system = _try(render, [{"role": "system", "content": "probe_system"}, _USER], None)
    with_tools = _try(render, [_USER], [_TOOL])
    reads_tools = "probe_tool" in with_tools
    tools = [_TOOL] if reads_tools else None
    as_object = _try(render, _called({"probe_key": "probe_value"}), tools)
    as_text = _try(render, _called('{"probe_key": "probe_value"}'), tools, True)
    # An object printed as Python's repr, or refused where text is taken.
    is_misread = not as_object or "'probe_key'" in as_object
    wants_text = is_misread and _JSON_ARGUMENTS.search(as_text) is not None
    called = as_text if wants_text else as_object
    reads_calls = "probe_value" in called and "probe_result" in called
    arguments: Any = '{"probe_key": "probe_value"}' if wants_text else {"probe_key": "probe_value"}
    two_calls = _try(render, _called(arguments, 2), tools, wants_text)
    return TemplateTraits(
        reads_system="probe_system" in system,
        reads_tools=reads_tools,
        # The definition above may spell the names too; the value is the call's alone.
        reads_calls=reads_calls,
        wants_text_arguments=wants_text,
        takes_parallel_calls=not reads_calls or bool(two_calls),
    )


def _called(arguments: object, n_calls: int = 1) -> list[dict[str, Any]]:
    function = {"name": "probe_tool", "arguments": arguments}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": _CALL_ID, "name": "probe_tool"}
    return [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": [call] * n_calls},
        *[{**result, "content": "probe_result"}] * n_calls,
    ]


def _try(
    render: Render,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    arguments_as_text: bool = False,
) -> str:
    """The rendered text, "" where the template refuses."""
    try:
        return render(messages, tools, arguments_as_text)
    except ValueError:
        return ""
