"""/openapi.json: the routes read their bodies and write their answers themselves, so the schemas of
both are put in here, and what their fields mean."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from astrai.server.anthropic_models import CountTokensRequest, MessagesRequest
from astrai.server.completions_models import CompletionRequest
from astrai.server.field_texts import with_texts
from astrai.server.openai_models import ChatCompletionRequest
from astrai.server.openapi_answers import COMPONENTS, responses_of
from astrai.server.responses_models import InputFields, ResponsesRequest
from astrai.server.service_models import DetokenizeRequest, TokenizeRequest

_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/input_tokens": InputFields,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def install_openapi(app: FastAPI) -> None:
    """Make app.openapi() describe the request bodies; built once, when first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _build(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title, version=app.version, routes=app.routes, servers=app.servers
    )
    _, definitions = models_json_schema(
        [(model, "validation") for model in _BODIES.values()],
        ref_template="#/components/schemas/{model}",
    )
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for name, declared in {**definitions["$defs"], **COMPONENTS}.items():
        components[name] = with_texts(name, declared)
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's; ours has an envelope
        components.pop(name, None)
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = responses_of(method, path)
    for path, model in _BODIES.items():
        reference = {"$ref": f"#/components/schemas/{model.__name__}"}
        schema["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    return schema
