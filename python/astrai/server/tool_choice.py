"""`tool_choice` of both protocols as one thing, checked against the tools of its request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from astrai.server.errors import bad_request

_OPENAI_FORMS = (
    'tool_choice should be "none", "auto", "required" or '
    '{"type": "function", "function": {"name": ...}}'
)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """is_off: no tool is offered. is_forced: the answer is calls and nothing else; of the tool
    `name` where it is given."""

    is_off: bool = False
    is_forced: bool = False
    name: str | None = None


def openai_tool_choice(choice: str | dict[str, Any], names: Collection[str]) -> ToolChoice:
    """names: of the request's tools. Raises a 400 for what cannot be meant."""
    if isinstance(choice, str):
        return _checked(ToolChoice(choice == "none", choice == "required"), names)
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise bad_request(_OPENAI_FORMS, param="tool_choice")
    return _checked(ToolChoice(is_forced=True, name=name), names)


def anthropic_tool_choice(kind: str, name: str | None, names: Collection[str]) -> ToolChoice:
    """kind: "auto", "any", "tool" or "none". Raises a 400 for what cannot be meant."""
    if kind == "tool" and name is None:
        raise bad_request("tool_choice of type 'tool' needs a name", param="tool_choice")
    is_forced = kind in ("any", "tool")
    return _checked(ToolChoice(kind == "none", is_forced, name if kind == "tool" else None), names)


def _checked(choice: ToolChoice, names: Collection[str]) -> ToolChoice:
    if choice.name is not None and choice.name not in names:
        raise bad_request(
            f"tool_choice names {choice.name[:64]!r}, which is not among the tools",
            param="tool_choice",
        )
    if choice.is_forced and not names:
        raise bad_request(
            "tool_choice asks for a call, but there are no tools", param="tool_choice"
        )
    return choice
