"""Request body of POST /v1/completions: raw prompts as text or token ids.

https://platform.openai.com/docs/api-reference/completions/create
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import model_validator

from astrai.server.fields import (
    MAX_PROMPTS,
    Bounded,
    ModelName,
    Nullable,
    Positive,
    Probability,
    PromptIds,
    SamplingFields,
    Temperature,
    TopK,
    TopLogprobs,
)
from astrai.server.structured_output import StructuredFields

Prompt = (
    str
    | Annotated[list[str], Bounded(1, MAX_PROMPTS)]
    | PromptIds
    | Annotated[list[PromptIds], Bounded(1, MAX_PROMPTS)]
)


class CompletionRequest(SamplingFields, StructuredFields):
    model: ModelName = "astrai"
    prompt: Prompt
    temperature: Nullable[Temperature] = 1.0
    top_p: Nullable[Probability] = 1.0
    top_k: Nullable[TopK] = 50
    max_tokens: Nullable[Positive] = 16
    echo: Nullable[bool] = False
    logprobs: TopLogprobs | None = None
    best_of: Positive | None = None
    suffix: str | None = None
    add_special_tokens: Nullable[bool] = False
    parse_special: Nullable[bool] = True

    @model_validator(mode="before")
    @classmethod
    def _prompt_of_one_kind(cls, value: Any) -> Any:
        # One clear message in place of four, one for each member of the union.
        if isinstance(value, dict) and isinstance(prompt := value.get("prompt"), list):
            kinds = set(map(type, prompt))
            if len(prompt) > MAX_PROMPTS and kinds != {int}:
                raise ValueError(f"At most {MAX_PROMPTS} prompts, got {len(prompt)}")
            if len(kinds) > 1 or not kinds <= {str, int, list}:
                raise ValueError(
                    "prompt should be a text, a list of texts, a list of token ids or a list of "
                    "lists of token ids, and not empty"
                )
        return value

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one, in the order of their choices."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]  # a list of ids is one prompt
        return list(prompt)
