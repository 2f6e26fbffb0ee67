"""The FastAPI application: one engine (or none) behind the routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from astrai.server import (
    generation_routes,
    inspector_routes,
    page_routes,
    responses_routes,
    service_routes,
)
from astrai.server.engine_link import EngineLink, ServedEngine
from astrai.server.errors import install_error_handlers
from astrai.server.metrics import ServerMetrics
from astrai.server.middleware import Gate
from astrai.server.openapi import install_openapi
from astrai.server.response_store import ResponseStore
from astrai.server.settings import ServerSettings

__all__ = ["create_app"]


def create_app(
    engine: ServedEngine | None, settings: ServerSettings, response_id_prefix: str = "resp_"
) -> FastAPI:
    """The application over an engine that is already running; None serves 503 on model routes.

    The caller keeps the engine and shuts it down. Its events arrive on the loop that runs the
    application's lifespan. response_id_prefix: see `ResponseStore`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        link = EngineLink(engine, settings) if engine is not None else None
        app.state.engine_link = link
        if link is None:
            yield
            return
        app.state.metrics.watch(link, settings.served_model_name)
        warm_up = asyncio.create_task(link.warm_grammars())
        yield
        warm_up.cancel()
        app.state.engine_link = None
        link.close()

    app = FastAPI(
        title="AstrAI inference server",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.engine_link = None
    app.state.draining = False
    app.state.started = int(time.time())
    app.state.metrics = ServerMetrics()
    app.state.response_store = ResponseStore(
        settings.max_stored_responses, id_prefix=response_id_prefix
    )
    app.include_router(generation_routes.router)
    app.include_router(responses_routes.router)
    app.include_router(service_routes.router)
    app.include_router(inspector_routes.router)
    app.include_router(page_routes.router)
    install_error_handlers(app)
    install_openapi(app)
    app.add_middleware(Gate, settings=settings, metrics=app.state.metrics.http)
    if settings.cors_origins:
        # Outside the gate: a browser's preflight request carries no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            allow_credentials=settings.cors_credentials,
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )
    return app
