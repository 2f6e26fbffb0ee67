"""Routes that generate text, one line for each protocol."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from astrai.server.anthropic import AnthropicResponseBuilder, encode_messages
from astrai.server.anthropic_models import CountTokensRequest, MessagesRequest
from astrai.server.body import read_model
from astrai.server.completions import CompletionResponseBuilder
from astrai.server.completions_models import CompletionRequest
from astrai.server.openai_chat import OpenAIResponseBuilder
from astrai.server.openai_models import ChatCompletionRequest
from astrai.server.plain_route import PlainRoute
from astrai.server.protocol import require_engine, serve_protocol
from astrai.server.sse import encode_json

router = APIRouter(route_class=PlainRoute)


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """The next message of a conversation in OpenAI's protocol, streamed or not."""
    return await serve_protocol(request, ChatCompletionRequest, OpenAIResponseBuilder())


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """How raw prompts go on, in OpenAI's older protocol, streamed or not."""
    return await serve_protocol(request, CompletionRequest, CompletionResponseBuilder())


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    """The next message of a conversation in Anthropic's protocol, streamed or not."""
    return await serve_protocol(request, MessagesRequest, AnthropicResponseBuilder())


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a message has."""
    body = await read_model(request, CountTokensRequest)
    link = require_engine(request)
    ids, *_ = await link.run(encode_messages, body, link)
    return Response(encode_json({"input_tokens": len(ids)}), media_type="application/json")
