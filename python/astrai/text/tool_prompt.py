"""Tools for a chat template that knows none: definitions, calls and results as ordinary text.

The calls are written as in the format "hermes", in which the answer is then read."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["calls_as_text", "one_call_a_turn", "with_instruction"]

_INSTRUCTION = """\
You can call functions. Each line between the tags describes one of them in JSON.
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as JSON between these tags, and nothing else:
<tool_call>
{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}
</tool_call>
Write the tags again for each further call. Results come back between <tool_response> tags. \
Where no function is of use, answer in words."""


def with_instruction(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], reads_system: bool
) -> list[dict[str, Any]]:
    """The conversation with the tools and the way to call them in its system message, which is
    added where there is none; without reads_system, in the first user message."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    instruction = _INSTRUCTION.format(tools=lines)
    role = "system" if reads_system else "user"
    at = next((i for i, message in enumerate(messages) if message["role"] == role), None)
    if at is None:
        return [{"role": role, "content": instruction}, *messages]
    own = messages[at]["content"]
    texts = (own, instruction) if reads_system else (instruction, own)
    changed = {**messages[at], "content": "\n\n".join(text for text in texts if text)}
    return [*messages[:at], changed, *messages[at + 1 :]]


def calls_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with tool calls as text of the assistant and results as text of the user.

    Results join the user's turn that follows them: many templates refuse two turns of one role."""
    turns: list[dict[str, Any]] = []
    is_result_open = False  # the last turn holds results and may take more
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
        elif message["role"] == "user" and is_result_open:
            text = message["content"]
        else:
            is_result_open = False
            turns.append(_spoken(message))
            continue
        if is_result_open:
            turns[-1]["content"] += "\n" + text
        else:
            turns.append({"role": "user", "content": text})
        is_result_open = message["role"] == "tool"
    return turns


def one_call_a_turn(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with a turn of its own for each call, its result behind it, for templates
    that refuse several calls in a turn."""
    turns: list[dict[str, Any]] = []
    moved: set[int] = set()  # identities of the results that stand behind their calls already
    for at, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if id(message) in moved:
            continue
        if len(calls) < 2:
            turns.append(message)
            continue
        results = {}
        for later in messages[at + 1 :]:
            if later["role"] != "tool":
                break
            results[later.get("tool_call_id")] = later
        for i, call in enumerate(calls):
            content = message["content"] if i == 0 else ""
            turns.append({**message, "content": content, "tool_calls": [call]})
            if call["id"] in results:
                turns.append(results[call["id"]])
                moved.add(id(results[call["id"]]))
    return turns


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        function = call["function"]
        call_json = {"name": function["name"], "arguments": function["arguments"]}
        text = json.dumps(call_json, ensure_ascii=False)
        texts.append(f"<tool_call>\n{text}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(texts)}
