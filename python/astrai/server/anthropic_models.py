"""Request bodies of POST /v1/messages and /v1/messages/count_tokens, and their template messages.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from astrai.server.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Bounded,
    GenerationModel,
    ModelName,
    Nullable,
    Positive,
    Probability,
    RepetitionPenalty,
    RequestModel,
    StopList,
    Temperature,
    TopK,
)
from astrai.server.openai_models import Name
from astrai.server.structured_output import AnthropicFormat, OutputConfig


class ContentBlock(RequestModel):
    """A block of a message: text, tool_use or tool_result; others are refused by the builder."""

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[ContentBlock], Bounded(max_length=MAX_MESSAGES)] | None = None
    is_error: Nullable[bool] = False
    thinking: str | None = None

    @model_validator(mode="after")
    def _fields_of_the_type(self) -> ContentBlock:
        needed = {"text": ("text",), "tool_use": ("id", "name"), "tool_result": ("tool_use_id",)}
        for name in needed.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"A {self.type} block should have {name}")
        return self


Blocks = Annotated[list[ContentBlock], Bounded(max_length=MAX_MESSAGES)]


class AnthropicMessage(RequestModel):
    role: Literal["user", "assistant"]
    content: str | Blocks


class SystemBlock(RequestModel):
    type: Literal["text"]
    text: str


class AnthropicTool(RequestModel):
    name: Name
    type: Literal["custom"] = "custom"
    description: str | None = None
    input_schema: dict[str, Any]


class AnthropicToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Nullable[bool] = False


class Thinking(RequestModel):
    """budget_tokens and the like are accepted and have no effect."""

    type: Literal["enabled", "disabled", "adaptive"]


class CountTokensRequest(RequestModel):
    """What of a message request decides its prompt."""

    model: ModelName = "astrai"
    messages: Annotated[list[AnthropicMessage], Bounded(1, MAX_MESSAGES)]
    system: str | Annotated[list[SystemBlock], Bounded(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[AnthropicTool], Bounded(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountTokensRequest, GenerationModel):
    max_tokens: Nullable[Positive] = 1024
    temperature: Nullable[Temperature] = 1.0
    top_p: Nullable[Probability] = 1.0
    top_k: Nullable[TopK] = 50
    repetition_penalty: Nullable[RepetitionPenalty] = 1.0
    stream: Nullable[bool] = False
    stop_sequences: StopList | None = None
    metadata: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: AnthropicFormat | None = None


def template_messages(request: CountTokensRequest) -> list[dict[str, Any]]:
    """The conversation as chat templates read it. Raises ValueError for what they lack."""
    messages: list[dict[str, Any]] = []
    if request.system:
        system = request.system
        text = system if isinstance(system, str) else "".join(block.text for block in system)
        messages.append({"role": "system", "content": text})
    for message in request.messages:
        messages.extend(_template_turns(message))
    return messages


def _template_turns(message: AnthropicMessage) -> list[dict[str, Any]]:
    """One message's turns: results of tools come before the user's own text."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    texts, thoughts, calls, results = [], [], [], []
    for block in message.content:
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "tool_use" and message.role == "assistant":
            function = {"name": block.name, "arguments": block.input or {}}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type == "tool_result" and message.role == "user":
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": block.tool_use_id,
                    "content": _result_text(block),
                }
            )
        elif block.type == "thinking" and message.role == "assistant":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            raise ValueError(
                f"content block of type {block.type!r} is not supported in a message of role "
                f"{message.role!r}: this model reads text only"
            )
    if texts or calls or not results:
        turn: dict[str, Any] = {"role": message.role, "content": "".join(texts)}
        if any(thoughts):
            turn["reasoning_content"] = "".join(thoughts)
        if calls:
            turn["tool_calls"] = calls
        results.append(turn)
    return results


def _result_text(result: ContentBlock) -> str:
    """The text of a tool_result. Templates know no failed results, so the text says it."""
    content = result.content if result.content is not None else ""
    if not isinstance(content, str):
        for block in content:
            if block.type != "text":
                raise ValueError(
                    f"tool_result block of type {block.type!r} is not supported: "
                    "this model reads text only"
                )
        content = "".join(block.text or "" for block in content)
    if result.is_error and not content.lower().startswith("error"):
        return f"Error: {content}" if content else "Error"
    return content


def template_tools(tools: list[AnthropicTool] | None) -> list[dict[str, Any]] | None:
    """Tool definitions in OpenAI's form, the one chat templates read."""
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            },
        }
        for tool in tools
    ]
