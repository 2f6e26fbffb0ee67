"""Request bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from astrai.server.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Bounded,
    ModelName,
    Nullable,
    RequestModel,
    TokenIds,
)
from astrai.server.openai_models import ChatMessage, ToolDef


class TokenizeRequest(RequestModel):
    """Either a raw prompt, in which special-token markers are tokens, or a conversation."""

    model: ModelName = "astrai"
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Bounded(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolDef], Bounded(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: Nullable[bool] = False
    parse_special: Nullable[bool] = True

    @model_validator(mode="after")
    def _one_source(self) -> TokenizeRequest:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("Either prompt or messages should be given")
        return self


class DetokenizeRequest(RequestModel):
    model: ModelName = "astrai"
    tokens: TokenIds
    skip_special_tokens: Nullable[bool] = False
