"""Errors as clients see them: FastAPI's `detail` and the protocol's own envelope in one body.

Messages here reach clients: they name fields and limits, never a path, a trace or a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Scope

log = logging.getLogger("astrai.server")

ANTHROPIC_PREFIX = "/v1/messages"
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    408: "timeout_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    408: "timeout_error",
}


class ApiError(Exception):
    """An answer other than 200.

    detail: what FastAPI's clients read; the message when left out. retry_after_s sets Retry-After.
    is_final tells the official clients not to send the same request again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        detail: list[dict[str, Any]] | None = None,
        retry_after_s: float | None = None,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.is_final = is_final


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: what the client got wrong beyond types and ranges."""
    return ApiError(400, message, param=param, code=code)


def not_loaded() -> ApiError:
    return ApiError(503, "Engine not initialized", code="engine_not_initialized")


def route_path(scope: Scope) -> str:
    """The path as the routes name it: without the root path, if a proxy has left it there."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def is_anthropic(path: str) -> bool:
    return path == ANTHROPIC_PREFIX or path.startswith(ANTHROPIC_PREFIX + "/")


def openai_error(error: ApiError) -> dict[str, Any]:
    """OpenAI's error object. https://platform.openai.com/docs/guides/error-codes"""
    fallback = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "message": error.message,
        "type": _OPENAI_TYPES.get(error.status, fallback),
        "param": error.param,
        "code": error.code,
    }


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object. https://docs.anthropic.com/en/api/errors"""
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    return {"type": _ANTHROPIC_TYPES.get(error.status, fallback), "message": error.message}


def error_body(path: str, error: ApiError) -> dict[str, Any]:
    """The body of an error answer on `path`, in the shape of that path's protocol."""
    detail = error.detail if error.detail is not None else error.message
    if is_anthropic(path):
        return {"type": "error", "error": anthropic_error(error), "detail": detail}
    return {"detail": detail, "error": openai_error(error)}


def error_response(
    path: str, error: ApiError, headers: Mapping[str, str] | None = None
) -> Response:
    merged = dict(headers or {})
    if error.retry_after_s is not None:
        merged["retry-after"] = str(max(1, round(error.retry_after_s)))
    if error.is_final:
        merged["x-should-retry"] = "false"
    return Response(
        orjson.dumps(error_body(path, error)),
        status_code=error.status,
        headers=merged,
        media_type="application/json",
    )


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(route_path(request.scope), error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    # Raised by the router alone: unknown paths (404) and methods (405, with its Allow header).
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = "no such route; /openapi.json lists the routes"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method} is not allowed on this route; use {allowed}"
    return error_response(
        route_path(request.scope), ApiError(error.status_code, message), headers=error.headers
    )


async def _on_query_error(request: Request, error: Exception) -> Response:
    # Bodies are read and validated by the routes themselves; this is about query parameters.
    assert isinstance(error, RequestValidationError)
    detail = [{"type": e["type"], "loc": list(e["loc"]), "msg": e["msg"]} for e in error.errors()]
    first = detail[0]
    name = str(first["loc"][-1])
    refused = ApiError(
        422, f"{name}: {first['msg']}", param=name, code=first["type"], detail=detail
    )
    return error_response(route_path(request.scope), refused)


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _on_query_error)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
