"""The fields by which clients ask for structured output, and the grammar they amount to.

`response_format` is OpenAI's, `guided_*` and `structured_outputs` are what clients of vLLM send,
`output_config` and `output_format` are Anthropic's.
https://platform.openai.com/docs/guides/structured-outputs
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from astrai.server.errors import ApiError, bad_request
from astrai.server.fields import Bounded, RequestModel
from astrai.structured import Grammar, GrammarError

MAX_CHOICES = 4096

Schema = dict[str, Any] | bool
SchemaOrText = dict[str, Any] | bool | str
Choices = Annotated[list[str], Bounded(1, MAX_CHOICES)]
AskedGrammar = tuple[Grammar, str]  # with the field that asks for it


class JsonSchemaFormat(RequestModel):
    """strict and description change nothing: a schema is always enforced."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(RequestModel):
    """vLLM's object: one of its fields."""

    json_: SchemaOrText | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None


class StructuredFields(RequestModel):
    """The fields of both OpenAI routes."""

    response_format: ResponseFormat | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None


class AnthropicFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: Schema | None = Field(None, alias="schema")


class OutputConfig(RequestModel):
    format: AnthropicFormat | None = None


def openai_grammar(request: StructuredFields) -> AskedGrammar | None:
    """What an OpenAI request asks for, None for plain text. Raises a 400 for a conflict."""
    asked = [
        *_of_response_format(request.response_format),
        *_of_kinds(
            "guided_",
            json=request.guided_json,
            regex=request.guided_regex,
            grammar=request.guided_grammar,
            choice=request.guided_choice,
        ),
    ]
    given = request.structured_outputs
    if given is not None:
        if given.structural_tag is not None:
            raise bad_request(
                "structured_outputs.structural_tag is not supported by this server",
                param="structured_outputs.structural_tag",
                code="unsupported_value",
            )
        asked += _of_kinds(
            "structured_outputs.",
            json=given.json_,
            regex=given.regex,
            grammar=given.grammar,
            choice=given.choice,
            json_object=given.json_object or None,
        )
    return _only(asked)


def anthropic_grammar(
    config: OutputConfig | None, output_format: AnthropicFormat | None
) -> AskedGrammar | None:
    """What a message request asks for, None for plain text. Raises a 400 for a conflict."""
    asked = []
    for wanted, param in (
        (config.format if config is not None else None, "output_config.format"),
        (output_format, "output_format"),
    ):
        if wanted is not None:
            asked.append((_schema_grammar(wanted.schema_, f"{param}.schema"), param))
    return _only(asked)


def grammar_refusal(error: Exception, param: str) -> ApiError:
    """The 400 of a grammar that cannot be used."""
    return bad_request(f"{param}: {error}", param=param, code="invalid_grammar")


def _of_response_format(wanted: ResponseFormat | None) -> list[AskedGrammar]:
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [(Grammar.json_object(), "response_format")]
    schema = wanted.json_schema.schema_ if wanted.json_schema is not None else None
    return [(_schema_grammar(schema, "response_format.json_schema.schema"), "response_format")]


def _of_kinds(prefix: str, **kinds: Any) -> list[AskedGrammar]:
    """The grammars of fields named prefix + kind, those left out apart."""
    asked = []
    for kind, value in kinds.items():
        if value is None:
            continue
        param = prefix + kind
        if kind == "json":
            grammar = _schema_grammar(value, param)
        elif kind == "choice":
            grammar = _guard(Grammar.choice, value, param)
        elif kind == "json_object":
            grammar = Grammar.json_object()
        else:
            grammar = Grammar.regex(value) if kind == "regex" else Grammar.lark(value)
        asked.append((grammar, param))
    return asked


def _schema_grammar(schema: SchemaOrText | None, param: str) -> Grammar:
    if schema is None:
        raise bad_request(f"{param} is missing", param=param, code="missing_required_parameter")
    if isinstance(schema, str):
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError:
            raise bad_request(f"{param} is not valid JSON", param=param) from None
    if not isinstance(schema, (dict, bool)):
        raise bad_request(f"{param} should be a JSON schema: an object or a boolean", param=param)
    return _guard(Grammar.json_schema, schema, param)


def _guard(make: Any, value: Any, param: str) -> Grammar:
    try:
        grammar: Grammar = make(value)
    except GrammarError as error:
        raise grammar_refusal(error, param) from None
    return grammar


def _only(asked: list[AskedGrammar]) -> AskedGrammar | None:
    if len(asked) > 1:
        names = " and ".join(param for _, param in asked[:2])
        raise bad_request(f"{names} exclude each other", param=asked[1][1], code="conflict")
    return asked[0] if asked else None
