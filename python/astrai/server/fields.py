"""Types that the request models share: strict, null-tolerant, bounded.

Strict means: no boolean or string where a number belongs. An integer is accepted where a float
belongs. Unknown fields are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema

MAX_ITEMS = 2**22  # no list in a body of the default size is longer
MAX_MESSAGES = 8192
MAX_PROMPTS = 16384
MAX_TOOLS = 1024
MAX_BIASES = 4096
MAX_STOP_IDS = 1024
MAX_STOPS = 1024
_TOKEN_KEY = re.compile(r"-?[0-9]{1,18}")
# Seeds fill one signed or unsigned 64-bit word.
_MIN_SEED, _MAX_SEED = -(2**63), 2**64 - 1


class RequestModel(BaseModel):
    """Base of every request body. A null field is an absent one, so its default holds."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None}


class _NullInSchema:
    """Declares in the JSON schema that null is accepted (RequestModel drops it)."""

    @staticmethod
    def __get_pydantic_json_schema__(core: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {"anyOf": [handler(core), {"type": "null"}]}


@dataclass(frozen=True)
class Bounded:
    """Bounds of a list's length, and validation that stops at the first bad item.

    A body may hold a million bad items; one is enough to refuse it. Pydantic's own FailFast is
    not hashable and so cannot stand in a union.
    """

    min_length: int = 0
    max_length: int = MAX_ITEMS

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        assert schema["type"] == "list"
        return {
            **schema,
            "fail_fast": True,
            "min_length": self.min_length,
            "max_length": self.max_length,
        }


T = TypeVar("T")
Nullable = Annotated[T, _NullInSchema]
# Every frame of a stream repeats it.
ModelName = Nullable[Annotated[str, Field(max_length=1024)]]


def _parse_logit_bias(value: Any) -> Any:
    """JSON object keys are strings; token ids are integers."""
    if not isinstance(value, dict):
        raise ValueError("Input should be an object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise ValueError(f"At most {MAX_BIASES} token ids, got {len(value)}")
    parsed = {}
    for key, bias in value.items():
        if isinstance(key, str) and _TOKEN_KEY.fullmatch(key):
            key = int(key)
        elif isinstance(key, bool) or not isinstance(key, int):
            raise ValueError("Keys should be token ids, whole numbers written as strings")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise ValueError(f"The bias of token {key} should be a number")
        if not -100 <= bias <= 100:
            raise ValueError(f"The bias of token {key} should be between -100 and 100")
        parsed[key] = float(bias)
    return parsed


def _check_stops(stops: list[str]) -> list[str]:
    if any(not stop for stop in stops):
        raise ValueError("A stop string should not be empty")
    return stops


def _check_stop(stop: str | list[str]) -> str | list[str]:
    _check_stops([stop] if isinstance(stop, str) else stop)
    return stop


LogitBias = Annotated[dict[int, float], BeforeValidator(_parse_logit_bias)]
StopList = Annotated[list[str], Bounded(max_length=MAX_STOPS), AfterValidator(_check_stops)]
Stop = Annotated[
    str | Annotated[list[str], Bounded(max_length=MAX_STOPS)], AfterValidator(_check_stop)
]
TokenId = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenIds = Annotated[list[TokenId], Bounded()]
PromptIds = Annotated[list[TokenId], Bounded(min_length=1)]
StopTokenIds = Annotated[list[TokenId], Bounded(max_length=MAX_STOP_IDS)]
Seed = Annotated[int, Field(ge=_MIN_SEED, le=_MAX_SEED)]
Temperature = Annotated[float, Field(ge=0, le=2)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=10)]  # as SamplingParams has it
TopK = Annotated[int, Field(ge=-1)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
DeadlineMs = Annotated[int, Field(ge=1, le=86_400_000)]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]


class StreamOptions(RequestModel):
    """include_usage left out: the usage event that SPEC.md shows; true: OpenAI's; false: none."""

    include_usage: bool | None = None


class GenerationModel(RequestModel):
    """Base of the bodies that ask for generated text, in every protocol.

    deadline_ms: time from the request's arrival after which its answer is of no use any more.
    """

    deadline_ms: DeadlineMs | None = None


class SamplingFields(GenerationModel):
    """Sampling beyond what a protocol names itself; the same in both OpenAI routes."""

    presence_penalty: Nullable[Penalty] = 0.0
    frequency_penalty: Nullable[Penalty] = 0.0
    repetition_penalty: Nullable[RepetitionPenalty] = 1.0
    min_p: Nullable[Probability] = 0.0
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: Nullable[bool] = False
    min_tokens: Nullable[NonNegative] = 0
    skip_special_tokens: Nullable[bool] = True
    return_token_ids: Nullable[bool] = False
    n: Nullable[Positive] = 1
    stream: Nullable[bool] = False
    stream_options: StreamOptions | None = None
    user: str | None = None
