"""Request body of POST /v1/responses.

https://platform.openai.com/docs/api-reference/responses/create
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
    Penalty,
    Positive,
    Probability,
    RepetitionPenalty,
    RequestModel,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopLogprobs,
)
from astrai.server.openai_models import Name

Kind = Annotated[str, Field(max_length=64)]


class InputPart(RequestModel):
    """A part of an item's content. Only text can be served; other types are refused by name."""

    type: Kind
    text: str | None = None
    refusal: str | None = None


Parts = Annotated[list[InputPart], Bounded(max_length=MAX_MESSAGES)]

_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}


class InputItem(RequestModel):
    """A message, a function call, its output, or reasoning; others are refused by name."""

    type: Kind = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Parts | None = None
    call_id: str | None = None
    name: Name | None = None
    arguments: str | None = None
    output: str | Parts | None = None
    summary: Parts | None = None

    @model_validator(mode="after")
    def _fields_of_the_type(self) -> InputItem:
        for name in _NEEDED.get(self.type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"A {self.type} item should have {name}")
        return self


class ResponseTool(RequestModel):
    """A function; tools that OpenAI runs itself are refused by name."""

    type: Kind
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _functions_have_names(self) -> ResponseTool:
        if self.type == "function" and self.name is None:
            raise ValueError("A function should have a name")
        return self


class TextFormat(RequestModel):
    """Fields as of OpenAI's response_format, one level up."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _a_schema_is_there(self) -> TextFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("A format of type json_schema should have a schema")
        return self


class TextOptions(RequestModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(RequestModel):
    """effort reaches the chat template; summaries are not made."""

    effort: Annotated[str, Field(pattern=r"^[a-z]{1,16}$")] | None = None
    summary: Kind | None = None


class AllowedTool(RequestModel):
    type: Kind
    name: str


class FunctionChoice(RequestModel):
    type: Kind
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[AllowedTool], Bounded(max_length=1024)] | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class InputFields(GenerationModel):
    """What makes up a prompt."""

    model: ModelName = "astrai"
    input: Nullable[str | Annotated[list[InputItem], Bounded(max_length=MAX_MESSAGES)]] = ""
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=128)] | None = None
    tools: Annotated[list[ResponseTool], Bounded(max_length=MAX_TOOLS)] | None = None
    tool_choice: Nullable[Literal["none", "auto", "required"] | FunctionChoice] = "auto"
    parallel_tool_calls: Nullable[bool] = True
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Nullable[Literal["auto", "disabled"]] = "disabled"
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


class ResponsesRequest(InputFields):
    max_output_tokens: Positive | None = None
    temperature: Nullable[Temperature] = 1.0
    top_p: Nullable[Probability] = 1.0
    top_k: Nullable[TopK] = 50
    repetition_penalty: Nullable[RepetitionPenalty] = 1.0
    top_logprobs: TopLogprobs | None = None
    presence_penalty: Nullable[Penalty] = 0.0
    frequency_penalty: Nullable[Penalty] = 0.0
    seed: Seed | None = None
    stop: Stop | None = None
    stream: Nullable[bool] = False
    store: Nullable[bool] = True
    metadata: Metadata | None = None
    include: Annotated[list[Kind], Bounded(max_length=64)] | None = None
    background: Nullable[bool] = False
    max_tool_calls: Positive | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
