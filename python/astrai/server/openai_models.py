"""Request body of POST /v1/chat/completions, and what its messages look like to a chat template.

https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field, model_validator

from astrai.server.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Bounded,
    ModelName,
    Nullable,
    Positive,
    Probability,
    RequestModel,
    SamplingFields,
    Temperature,
    TopK,
    TopLogprobs,
)
from astrai.server.structured_output import StructuredFields

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]

# What the server itself gives to every template.
_OWN_VARIABLES = {"messages", "tools", "add_generation_prompt", "tokenizer", "template", "self"}


def _check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    for name in variables:
        if not name.isidentifier() or name in _OWN_VARIABLES:
            raise ValueError(f"{name[:64]!r} is no name of a template variable that may be set")
    return variables


TemplateVariables = Annotated[
    dict[str, Any], Field(max_length=64), AfterValidator(_check_variables)
]


class ContentPart(RequestModel):
    """A part of a message. Only text can be served; other types are refused by the builder."""

    type: Annotated[str, Field(max_length=64)]
    text: str | None = None

    @model_validator(mode="after")
    def _text_has_text(self) -> ContentPart:
        if self.type == "text" and self.text is None:
            raise ValueError("A text part should have a text")
        return self


class FunctionCall(RequestModel):
    name: Name
    arguments: Nullable[str] = ""


class ToolCall(RequestModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Bounded(max_length=MAX_MESSAGES)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Bounded(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _require_content(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.get("role") == "assistant":
            # Null content is what clients send back beside tool calls; a missing one is a mistake
            # unless there are tool calls.
            if "content" not in value and not value.get("tool_calls"):
                raise ValueError("An assistant message should have content or tool_calls")
        elif value.get("content") is None:
            raise ValueError("A message should have content")
        return value


class FunctionDef(RequestModel):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDef(RequestModel):
    type: Literal["function"]
    function: FunctionDef


class ChatCompletionRequest(SamplingFields, StructuredFields):
    model: ModelName = "astrai"
    messages: Annotated[list[ChatMessage], Bounded(1, MAX_MESSAGES)]
    temperature: Nullable[Temperature] = 1.0
    top_p: Nullable[Probability] = 1.0
    top_k: Nullable[TopK] = 50
    max_tokens: Nullable[Positive] = 2048
    max_completion_tokens: Positive | None = None
    logprobs: Nullable[bool] = False
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[ToolDef], Bounded(max_length=MAX_TOOLS)] | None = None
    tool_choice: Nullable[Literal["none", "auto", "required"] | dict[str, Any]] = "auto"
    parallel_tool_calls: Nullable[bool] = True
    reasoning_effort: Annotated[str, Field(pattern=r"^[a-z]{1,16}$")] | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self


def template_message(message: ChatMessage) -> dict[str, Any]:
    """The message as chat templates read it. Raises ValueError for what they cannot express."""
    # Templates know no developer role; it is OpenAI's newer name for system.
    role = "system" if message.role == "developer" else message.role
    rendered: dict[str, Any] = {"role": role, "content": content_text(message.content)}
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": parse_arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    for key in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, key)
        if value is not None:
            rendered[key] = value
    return rendered


def template_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """Variables for the template beyond the conversation. reasoning_effort "none" switches off
    reasoning in the templates that have a switch for it."""
    variables: dict[str, Any] = {}
    if request.reasoning_effort is not None:
        variables["reasoning_effort"] = request.reasoning_effort
    if request.reasoning_effort == "none":
        variables.update(reasoning_switch(False))
    return {**variables, **(request.chat_template_kwargs or {})}


def reasoning_switch(is_on: bool) -> dict[str, bool]:
    """The variables by which templates switch reasoning: Qwen's name and DeepSeek's."""
    return {"enable_thinking": is_on, "thinking": is_on}


def content_text(content: str | list[ContentPart] | None) -> str:
    """The text of a message; parts are joined without anything between them."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text":
            raise ValueError(
                f"content part of type {part.type!r} is not supported: this model reads text only"
            )
    return "".join(part.text or "" for part in content)


def parse_arguments(arguments: str) -> dict[str, Any]:
    """A call's JSON text as an object, the form templates render; "" and "null" are {}."""
    if not arguments.strip():
        return {}
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        raise ValueError("tool call arguments are not valid JSON") from None
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise ValueError("tool call arguments should be a JSON object")
    return parsed
