"""What the routes answer, as JSON schemas for /openapi.json: every field that clients may count on.

Answers are made as plain dictionaries where speed counts; a test holds real ones against these.
"""

from __future__ import annotations

from typing import Any

from astrai.server.errors import is_anthropic

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY_OBJECT: Schema = {"type": "object"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**properties: Schema) -> Schema:
    """An object that has all of these properties, and perhaps others."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _const(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


_OPENAI_USAGE = _object(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)
_FINISH = _const("stop", "length", "tool_calls")
_CHAT_CHOICE = _object(
    index=COUNT,
    message=_object(role=_const("assistant"), content=_or_null(TEXT)),
    logprobs=_or_null(ANY_OBJECT),
    finish_reason=_FINISH,
)
_COMPLETION_CHOICE = _object(
    index=COUNT, text=TEXT, logprobs=_or_null(ANY_OBJECT), finish_reason=_FINISH
)
_DETAIL: Schema = {"anyOf": [TEXT, _list(ANY_OBJECT)]}
_MODEL = _object(id=TEXT, object=_const("model"), created=COUNT, owned_by=TEXT)

COMPONENTS: dict[str, Schema] = {
    "ChatCompletion": _object(
        id=TEXT,
        object=_const("chat.completion"),
        created=COUNT,
        model=TEXT,
        choices=_list(_CHAT_CHOICE),
        usage=_OPENAI_USAGE,
    ),
    "Completion": _object(
        id=TEXT,
        object=_const("text_completion"),
        created=COUNT,
        model=TEXT,
        choices=_list(_COMPLETION_CHOICE),
        usage=_OPENAI_USAGE,
    ),
    "Response": _object(
        id=TEXT,
        object=_const("response"),
        created_at=COUNT,
        status=_const("completed", "incomplete"),
        model=TEXT,
        output=_list(_object(id=TEXT, type=_const("message", "reasoning", "function_call"))),
        usage=_object(input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT),
    ),
    "DeletedResponse": _object(id=TEXT, object=_const("response"), deleted={"type": "boolean"}),
    "InputItems": _object(
        object=_const("list"),
        data=_list(_object(id=TEXT, type=TEXT)),
        first_id=TEXT,
        last_id=TEXT,
        has_more={"type": "boolean"},
    ),
    "InputTokens": _object(object=_const("response.input_tokens"), input_tokens=COUNT),
    "Message": _object(
        id=TEXT,
        type=_const("message"),
        role=_const("assistant"),
        model=TEXT,
        content=_list(_object(type=_const("text", "thinking", "tool_use"))),
        stop_reason=_const("end_turn", "max_tokens", "stop_sequence", "tool_use"),
        stop_sequence=_or_null(TEXT),
        usage=_object(input_tokens=COUNT, output_tokens=COUNT),
    ),
    "MessageTokens": _object(input_tokens=COUNT),
    "Model": _MODEL,
    "ModelList": _object(object=_const("list"), data=_list(_MODEL)),
    "Tokens": _object(tokens=_list(COUNT), count=COUNT, max_model_len=COUNT),
    "Text": _object(prompt=TEXT),
    "Health": _object(status=_const("ok", "error"), model_loaded={"type": "boolean"}),
    "Ready": _object(ready={"type": "boolean"}),
    "Stats": _object(
        total_tasks=COUNT, total_tokens=COUNT, active_tasks=COUNT, waiting_queue=COUNT
    ),
    "Inspection": ANY_OBJECT,
    "OpenAIError": _object(
        detail=_DETAIL,
        error=_object(message=TEXT, type=TEXT, param=_or_null(TEXT), code=_or_null(TEXT)),
    ),
    "AnthropicError": _object(
        type=_const("error"), error=_object(type=TEXT, message=TEXT), detail=_DETAIL
    ),
}

# The body of a 200 by method and path; /metrics is text.
_ANSWERS = {
    ("post", "/v1/chat/completions"): "ChatCompletion",
    ("post", "/v1/completions"): "Completion",
    ("post", "/v1/responses"): "Response",
    ("get", "/v1/responses/{response_id}"): "Response",
    ("delete", "/v1/responses/{response_id}"): "DeletedResponse",
    ("get", "/v1/responses/{response_id}/input_items"): "InputItems",
    ("post", "/v1/responses/input_tokens"): "InputTokens",
    ("post", "/v1/messages"): "Message",
    ("post", "/v1/messages/count_tokens"): "MessageTokens",
    ("get", "/v1/models"): "ModelList",
    ("get", "/v1/models/{model_id}"): "Model",
    ("post", "/tokenize"): "Tokens",
    ("post", "/detokenize"): "Text",
    ("get", "/health"): "Health",
    ("get", "/ready"): "Ready",
    ("get", "/stats"): "Stats",
    ("get", "/debug/inspector"): "Inspection",
}
_NEVER_SERVED = {("post", "/v1/responses/{response_id}/cancel")}  # errors are all that it answers
_STREAMED = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
_ERRORS = {
    400: "What was asked for cannot be served; the message says why.",
    401: "A key is set and the request carries none.",
    403: "Not from here.",
    404: "There is no such thing.",
    413: "The body is larger than the server takes.",
    415: "The body is not sent as application/json.",
    422: "A field has a wrong type or range.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "This request failed.",
    503: "No model is loaded, or the server is shutting down.",
    408: "The answer did not end before the request's deadline.",
}
_BODY_ERRORS = frozenset({413, 415, 422})
_GENERATION_ERRORS = frozenset({429, 500, 408})


def responses_of(method: str, path: str) -> dict[str, Schema]:
    """The `responses` of an operation: its answer and every error that it may give."""
    content: dict[str, Schema] = {"text/plain": {"schema": TEXT}}
    if (method, path) in _ANSWERS:
        content = {"application/json": {"schema": _ref(_ANSWERS[method, path])}}
    if path in _STREAMED:
        content["text/event-stream"] = {"schema": TEXT}
    found: dict[str, Schema] = {}
    if (method, path) not in _NEVER_SERVED:
        found["200"] = {"description": "The answer.", "content": content}
    for status, text in _ERRORS.items():
        if status in _BODY_ERRORS and method != "post" and not path.endswith("input_items"):
            continue
        if status in _GENERATION_ERRORS and path not in _STREAMED:
            continue
        name = "AnthropicError" if is_anthropic(path) else "OpenAIError"
        if status == 503 and path in ("/health", "/ready"):
            name = _ANSWERS[method, path]
        schema = {"application/json": {"schema": _ref(name)}}
        found[str(status)] = {"description": text, "content": schema}
    return found


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
