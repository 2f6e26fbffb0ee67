"""Request bodies: bytes to a validated model, or a 422 that names the field.

The parser is strict (orjson): NaN, infinities, lone surrogates, invalid UTF-8 and nesting beyond
1024 levels are no JSON.
"""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from astrai.server.access_log import access_record
from astrai.server.errors import ApiError

Model = TypeVar("Model", bound=BaseModel)

# A body of this size is validated in about a millisecond; a larger one leaves the event loop.
_INLINE_BYTES = 64 * 1024
_MAX_DETAILS = 16  # a body may hold millions of faults; an answer names the first ones


async def read_model(request: Request, model: type[Model]) -> Model:
    """The request's JSON body as `model`. Raises ApiError 415, 422 (or 413 by the size limit)."""
    raw = await request.body()
    access_record(request).read(raw)
    _check_content_type(request.headers.get("content-type", ""))
    _check_encoding(request.headers.get("content-encoding", ""))
    if len(raw) > _INLINE_BYTES:
        return await run_in_threadpool(parse_model, raw, model)
    return parse_model(raw, model)


def _check_content_type(content_type: str) -> None:
    """A page in a browser may send any other type, or none, to any server without asking it."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(
            415,
            f"the content type is {media_type[:64]!r}; send JSON with the header "
            "Content-Type: application/json",
            code="unsupported_media_type",
        )


def _check_encoding(encoding: str) -> None:
    # Nothing is unpacked: a small body could hold more than the limit of its size.
    if encoding.strip().lower() not in ("", "identity"):
        raise ApiError(
            415,
            f"the content encoding is {encoding[:64]!r}; send the body as it is",
            code="unsupported_media_type",
        )


def parse_model(raw: bytes, model: type[Model]) -> Model:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        message = f"the request body is not valid JSON: {error.msg} (at character {error.pos})"
        raise _validation_error([_detail("json_invalid", ["body", error.pos], message)]) from None
    if not isinstance(value, dict):
        message = "the request body must be a JSON object"
        raise _validation_error([_detail("model_attributes_type", ["body"], message)])
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _validation_error(_details(error)) from None


def _detail(kind: str, loc: list[int | str], message: str) -> dict[str, Any]:
    return {"type": kind, "loc": loc, "msg": message}


def _details(error: ValidationError) -> list[dict[str, Any]]:
    # The input is left out: a body is not echoed, and it may be large or a prompt.
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [_detail(e["type"], ["body", *e["loc"]], e["msg"]) for e in found[:_MAX_DETAILS]]


def _validation_error(details: list[dict[str, Any]]) -> ApiError:
    first = details[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    if first["type"] == "json_invalid":
        return ApiError(422, first["msg"], code="json_invalid", detail=details)
    message = f"{param}: {first['msg']}" if param else first["msg"]
    return ApiError(422, message, param=param, code=first["type"], detail=details)
