"""Routes beside generation: health, readiness, stats, metrics, models, tokenize, detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from astrai.server.body import read_model
from astrai.server.engine_link import EngineLink
from astrai.server.errors import ApiError, bad_request
from astrai.server.openai_chat import check_tools
from astrai.server.openai_common import check_token_ids
from astrai.server.openai_models import template_message
from astrai.server.protocol import require_engine
from astrai.server.service_models import DetokenizeRequest, TokenizeRequest
from astrai.server.sse import encode_json

router = APIRouter()


def _json(payload: dict[str, Any], status: int = 200) -> Response:
    return Response(encode_json(payload), status_code=status, media_type="application/json")


@router.get("/health")
async def health(request: Request) -> Response:
    """Liveness: 503 once the engine's loop is dead, 200 otherwise, with or without a model."""
    link: EngineLink | None = request.app.state.engine_link
    if link is not None and not link.is_healthy():
        detail = "the engine has stopped after a fault; restart the server"
        return _json({"status": "error", "model_loaded": True, "detail": detail}, 503)
    return _json({"status": "ok", "model_loaded": link is not None})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Readiness: 200 while new requests are taken."""
    link: EngineLink | None = request.app.state.engine_link
    if link is None:
        return _json({"ready": False, "detail": "Engine not initialized"}, 503)
    if request.app.state.draining:
        return _json({"ready": False, "detail": "the server is shutting down"}, 503)
    if not link.is_healthy():
        return _json({"ready": False, "detail": "the engine has stopped after a fault"}, 503)
    return _json({"ready": True})


@router.get("/stats")
async def stats(request: Request) -> Response:
    """The engine's counters."""
    return _json(await run_in_threadpool(require_engine(request).stats))


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """What is counted, as Prometheus reads it; as OpenMetrics where asked for."""
    accept = request.headers.get("accept", "")
    text, content_type = await run_in_threadpool(request.app.state.metrics.render, accept)
    return Response(text, headers={"content-type": content_type})


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The model that is served; none without one."""
    card = _model_card(request)
    return _json({"object": "list", "data": [card] if card is not None else []})


@router.get("/v1/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> Response:
    """The model by the name that `/v1/models` lists."""
    card = _model_card(request)
    if card is None or model_id != card["id"]:
        raise ApiError(
            404,
            "no such model; GET /v1/models lists what is served",
            param="model",
            code="model_not_found",
        )
    return _json(card)


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Token ids of a raw prompt or of a conversation as it would be served."""
    body = await read_model(request, TokenizeRequest)
    link = require_engine(request)
    ids = await link.run(_tokenize, body, link)
    return _json({"tokens": ids, "count": len(ids), "max_model_len": link.max_seq_len})


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    body = await read_model(request, DetokenizeRequest)
    link = require_engine(request)
    check_token_ids(body.tokens, link.vocab_size, "tokens")
    text = await link.run(link.tokenizer.decode, body.tokens, body.skip_special_tokens)
    return _json({"prompt": text})


def _tokenize(body: TokenizeRequest, link: EngineLink) -> list[int]:
    if not body.messages:
        assert body.prompt is not None  # the model's validator saw to it
        return link.encode_text(body.prompt, body.add_special_tokens, body.parse_special)
    try:
        messages = [template_message(message) for message in body.messages]
    except ValueError as error:
        raise bad_request(str(error), param="messages") from None
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    check_tools(tools, link.settings.max_tools_bytes)
    return link.encode_chat(messages, tools or None)


def _model_card(request: Request) -> dict[str, Any] | None:
    link: EngineLink | None = request.app.state.engine_link
    if link is None:
        return None
    return {
        "id": link.settings.served_model_name,
        "object": "model",
        "created": request.app.state.started,
        "owned_by": "astrai",
        "max_model_len": link.max_seq_len,
    }
