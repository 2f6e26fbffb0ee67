"""Routes whose functions read the request and give the response themselves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["PlainRoute"]


class PlainRoute(APIRoute):
    """A route without parameters to solve or answers to convert, which FastAPI would look for in
    each request. Its function takes the request alone."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler
