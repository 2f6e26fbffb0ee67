"""The deployment that HTTP requests come to: it routes them and passes the answers on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message

from astrai.cli.serve import configure_logging
from astrai.deploy.forwarded import ForwardedRequest
from astrai.deploy.forwarder import Forwarder
from astrai.deploy.prompt_routes import PromptRoutes
from astrai.models import open_checkpoint
from astrai.server.errors import ApiError
from astrai.server.settings import ServerSettings
from astrai.server.text_link import TextLink

__all__ = ["Ingress"]

_RETRY_S = 2.0  # about as long as it takes another replica to have room


@serve.ingress()
class Ingress:
    """Holds the model's tokenizer and chat template, and none of its weights."""

    def __init__(self, engines: DeploymentHandle, settings: ServerSettings) -> None:
        configure_logging(settings)
        self._engines = engines
        self._answering = engines.options(method_name="answer", stream=True)
        _, checkpoint = open_checkpoint(settings.model)
        config = checkpoint.config
        text = TextLink(
            checkpoint.tokenizer,
            checkpoint.chat_template,
            config.vocab_size,
            settings.max_seq_len or config.context_len,
            settings,
        )
        routes = PromptRoutes(text)
        self._forwarder = Forwarder(self._dispatch, self._replicas, routes, settings)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._forwarder

    async def _dispatch(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        response: Any = self._answering.remote(request)
        has_ended = False
        try:
            async for batch in response:
                yield batch
            has_ended = True
        except BackPressureError:
            has_ended = True
            raise ApiError(
                429,
                "too many requests wait for an engine (--max-queue)",
                code="queue_full",
                retry_after_s=_RETRY_S,
            ) from None
        except (RayActorError, DeploymentUnavailableError):
            has_ended = True
            raise _engine_gone() from None
        finally:
            if not has_ended:
                response.cancel()

    async def _replicas(self) -> dict[str, Any]:
        told = self._engines.broadcast("stats")
        try:
            return dict(await asyncio.to_thread(told.results))
        except (RayActorError, DeploymentUnavailableError):
            raise _engine_gone() from None


def _engine_gone() -> ApiError:
    return ApiError(
        503,
        "an engine that this answer needs is gone; send the request again",
        code="engine_gone",
        retry_after_s=_RETRY_S,
    )
