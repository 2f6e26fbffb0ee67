"""POST /v1/messages: Anthropic's shapes and event sequence.

https://docs.anthropic.com/en/api/messages-streaming
"""

from __future__ import annotations

from typing import Any

from astrai.engine import TokenEvent
from astrai.sampling import SamplingParams
from astrai.server.anthropic_models import (
    CountTokensRequest,
    MessagesRequest,
    template_messages,
    template_tools,
)
from astrai.server.engine_link import EngineLink
from astrai.server.errors import ApiError, anthropic_error, bad_request
from astrai.server.openai_chat import check_tools
from astrai.server.openai_common import new_id, now, stop_strings
from astrai.server.protocol import Choice, ResponseBuilder, ResponseContext
from astrai.server.sse import DONE, named_frame

_BLOCK_START = named_frame(
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
)
_BLOCK_STOP = named_frame({"type": "content_block_stop", "index": 0})
# The unnamed [DONE] is the specification's; official clients skip events without a name.
_MESSAGE_STOP = named_frame({"type": "message_stop"}) + DONE


class AnthropicResponseBuilder(ResponseBuilder[MessagesRequest]):
    """Shapes of one message; made anew for each request."""

    def prepare(
        self, request: MessagesRequest, engine: EngineLink
    ) -> tuple[list[list[int]], ResponseContext, tuple[str, ...]]:
        sampling = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=min(request.top_k, engine.vocab_size),
            max_tokens=min(request.max_tokens, engine.max_seq_len),
        )
        stops = stop_strings(request.stop_sequences, engine, "stop_sequences")
        ctx = ResponseContext(new_id("msg_"), now(), request.model, request.stream, sampling)
        return [encode_messages(request, engine)], ctx, stops

    def format_stream_start(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        message = _message(ctx, [], choices[0])
        return named_frame({"type": "message_start", "message": message}) + _BLOCK_START

    def format_chunk(self, ctx: ResponseContext, choice: Choice, event: TokenEvent) -> bytes:
        if not event.text:
            return b""
        delta = {"type": "text_delta", "text": event.text}
        return named_frame({"type": "content_block_delta", "index": 0, "delta": delta})

    def format_stream_end(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        choice = choices[0]
        delta = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop_string}
        usage = {"output_tokens": choice.n_output}
        end = named_frame({"type": "message_delta", "delta": delta, "usage": usage})
        return _BLOCK_STOP + end + _MESSAGE_STOP

    def format_stream_error(self, error: ApiError) -> bytes:
        event = {"type": "error", "error": anthropic_error(error), "detail": error.message}
        return named_frame(event) + DONE

    def format_response(self, ctx: ResponseContext, choices: list[Choice]) -> dict[str, Any]:
        choice = choices[0]
        return _message(ctx, [{"type": "text", "text": choice.text}], choice)


def encode_messages(request: CountTokensRequest, engine: EngineLink) -> list[int]:
    """Prompt ids of a conversation with its system prompt and tools. Blocks; raises ApiError."""
    choice = request.tool_choice
    names = {tool.name for tool in request.tools or ()}
    if choice is not None and choice.type == "tool" and choice.name not in names:
        raise bad_request("tool_choice names no tool of this request", param="tool_choice")
    if choice is not None and choice.type in ("any", "tool"):
        raise bad_request(
            f"tool_choice {choice.type!r} (a forced tool call) is not supported by this server; "
            "use 'auto' or 'none'",
            param="tool_choice",
            code="unsupported_value",
        )
    tools = None if choice is not None and choice.type == "none" else template_tools(request.tools)
    if tools:
        check_tools(tools, engine.settings.max_tools_bytes)
    try:
        messages = template_messages(request)
    except ValueError as error:
        raise bad_request(str(error), param="messages") from None
    return engine.encode_chat(messages, tools)


def _message(ctx: ResponseContext, content: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
    return {
        "id": ctx.response_id,
        "type": "message",
        "role": "assistant",
        "model": ctx.model,
        "content": content,
        "stop_reason": _stop_reason(choice),
        "stop_sequence": choice.stop_string,
        "usage": {
            # Anthropic's input_tokens leave out what the prompt cache read.
            "input_tokens": choice.n_prompt - choice.reported_hit,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": choice.reported_hit,
            "output_tokens": choice.n_output,
        },
    }


def _stop_reason(choice: Choice) -> str | None:
    if choice.stop_string is not None:
        return "stop_sequence"
    return {"stop": "end_turn", "length": "max_tokens", None: None}[choice.finish_reason]
