"""POST /v1/chat/completions: OpenAI's chat shapes.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from astrai.engine import TokenEvent
from astrai.sampling import TokenLogprob
from astrai.server.answer import Answer, AnswerBlock, call_faults
from astrai.server.errors import ApiError, bad_request
from astrai.server.openai_common import (
    chat_logprobs,
    check_depth,
    error_frames,
    new_id,
    now,
    sampling_params,
    stop_strings,
    usage_frame,
    usage_of,
)
from astrai.server.openai_models import (
    ChatCompletionRequest,
    template_message,
    template_variables,
)
from astrai.server.protocol import Choice, ResponseBuilder, ResponseContext
from astrai.server.sse import DONE, TextFrame, frame
from astrai.server.structured_output import openai_grammar
from astrai.server.text_link import TextLink
from astrai.server.tool_choice import openai_tool_choice
from astrai.text.answer import AnswerEvent, CallArguments, CallBegin, ReasoningPiece, TextPiece

log = logging.getLogger("astrai.server")

_DELTAS = {"text": "content", "reasoning": "reasoning_content"}  # what holds a block's text


class OpenAIResponseBuilder(ResponseBuilder[ChatCompletionRequest]):
    """Shapes of one chat completion; made anew for each request."""

    def prepare(
        self, request: ChatCompletionRequest, engine: TextLink
    ) -> tuple[list[list[int]], ResponseContext, tuple[str, ...]]:
        self._engine = engine
        self._request = request
        self._text_frames: dict[tuple[int, str], TextFrame] = {}  # by choice and kind of block
        choice = openai_tool_choice(
            request.tool_choice, {tool.function.name for tool in request.tools or ()}
        )
        tools = None
        if request.tools and not choice.is_off:
            tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
            check_tools(tools, engine.settings.max_tools_bytes)
        try:
            messages = [template_message(message) for message in request.messages]
        except ValueError as error:
            raise bad_request(str(error), param="messages") from None
        wanted = (request.top_logprobs or 0) if request.logprobs else None
        sampling = sampling_params(
            request,
            engine,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=request.max_completion_tokens or request.max_tokens,
            logprobs=wanted,
        )
        stops = stop_strings(request.stop, engine, "stop")
        prompt_ids = engine.encode_chat(messages, tools, template_variables(request))
        dialect = engine.dialect
        reading, grammar = dialect.plan(
            prompt_ids, tools, choice, not request.parallel_tool_calls, openai_grammar(request)
        )
        sampling = replace(sampling, shown_token_ids=dialect.shown_token_ids(reading))
        response_id = new_id("chatcmpl-")
        if request.user is not None:
            log.info("%s is for user %r", response_id, request.user[:64])
        ctx = ResponseContext(
            response_id,
            now(),
            request.model,
            request.stream,
            sampling,
            request.n,
            wants_ids=request.return_token_ids,
            new_answer=partial(dialect.new_answer, reading, "call_"),
            grammar=grammar,
        )
        return [prompt_ids], ctx, stops

    def format_stream_start(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        # In the order of the indices: OpenAI's stream helper appends choices as they appear.
        role = {"role": "assistant"}
        return b"".join(self._chunk(ctx, choice, role, None) for choice in choices)

    def format_chunk(self, ctx: ResponseContext, choice: Choice, event: TokenEvent) -> bytes:
        deltas = [delta for piece in choice.answer.news if (delta := _delta(*piece)) is not None]
        has_tokens = (self._request.logprobs or ctx.wants_ids) and event.token_ids
        if has_tokens and not deltas:
            deltas = [{"content": ""}]
        # Token ids and logprobs come once for each event, with its first delta.
        frames = [
            self._chunk(ctx, choice, d, event if not i else None) for i, d in enumerate(deltas)
        ]
        if event.finish_reason is not None:
            frames.append(self._chunk(ctx, choice, {}, None))
        return b"".join(frames)

    def text_frame(self, ctx: ResponseContext, choice: Choice) -> TextFrame | None:
        kind = choice.answer.open_kind
        if self._request.logprobs or ctx.wants_ids or kind not in _DELTAS:
            return None
        key = choice.index, kind
        if key not in self._text_frames:
            example = self._chunk(ctx, choice, {_DELTAS[kind]: TextFrame.SLOT}, None)
            self._text_frames[key] = TextFrame(example)
        return self._text_frames[key]

    def format_stream_end(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        options = self._request.stream_options
        wanted = options.include_usage if options is not None else None
        empty = {"index": 0, "delta": {}, "finish_reason": None}
        return usage_frame(_head(ctx), empty, usage_of(choices, ctx.n), wanted) + DONE

    def format_stream_error(self, error: ApiError) -> bytes:
        return error_frames(error)

    def format_response(self, ctx: ResponseContext, choices: list[Choice]) -> dict[str, Any]:
        return {
            **_head(ctx, "chat.completion"),
            "choices": [self._choice(choice, ctx) for choice in choices],
            "usage": usage_of(choices, ctx.n),
        }

    def _choice(self, choice: Choice, ctx: ResponseContext) -> dict[str, Any]:
        shaped: dict[str, Any] = {
            "index": choice.index,
            "message": _message(choice.answer),
            "logprobs": None,
            "finish_reason": _finish_reason(choice),
        }
        if choice.answer.faults:
            shaped["tool_call_faults"] = call_faults(choice.answer)
        if self._request.logprobs:
            shaped["logprobs"] = self._logprobs(choice.logprobs)
        if ctx.wants_ids:
            shaped["token_ids"] = choice.token_ids
            shaped["prompt_token_ids"] = choice.prompt_ids
        return shaped

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        return chat_logprobs(entries, self._engine, self._request.skip_special_tokens)

    def _chunk(
        self, ctx: ResponseContext, choice: Choice, delta: dict[str, Any], event: TokenEvent | None
    ) -> bytes:
        """One chunk. event: the news it carries; the finish chunk has an empty delta and none."""
        is_end = not delta
        shaped: dict[str, Any] = {
            "index": choice.index,
            "delta": delta,
            "finish_reason": _finish_reason(choice) if is_end else None,
        }
        if is_end and choice.answer.faults:
            shaped["tool_call_faults"] = call_faults(choice.answer)
        if event is not None and event.logprobs is not None:
            shaped["logprobs"] = self._logprobs(event.logprobs)
        if ctx.wants_ids and event is not None:
            shaped["token_ids"] = event.token_ids
        if ctx.wants_ids and "role" in delta:
            shaped["prompt_token_ids"] = choice.prompt_ids
        return frame({**_head(ctx), "choices": [shaped]})


def _head(ctx: ResponseContext, kind: str = "chat.completion.chunk") -> dict[str, Any]:
    return {"id": ctx.response_id, "object": kind, "created": ctx.created, "model": ctx.model}


def _finish_reason(choice: Choice) -> str | None:
    """ "tool_calls" if and only if there are calls."""
    has_calls = choice.finish_reason is not None and choice.answer.calls
    return "tool_calls" if has_calls else choice.finish_reason


def _message(answer: Answer) -> dict[str, Any]:
    calls = answer.calls
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not answer.text else answer.text,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in calls
        ]
    return message


def _delta(event: AnswerEvent, block: AnswerBlock) -> dict[str, Any] | None:
    """The delta that tells an event, None for one that OpenAI's streams do not tell."""
    if isinstance(event, TextPiece | ReasoningPiece):
        return {_DELTAS[block.kind]: event.text}
    call: dict[str, Any] = {"index": block.call_idx}
    if isinstance(event, CallBegin):
        call |= {"id": block.call_id, "type": "function"}
        call["function"] = {"name": event.name, "arguments": ""}
    elif isinstance(event, CallArguments):
        call["function"] = {"arguments": event.text}
    else:
        return None
    return {"tool_calls": [call]}


def check_tools(tools: list[dict[str, Any]], max_bytes: int) -> None:
    """Refuse tool definitions that are too large or too deep for a template to render, and two of
    one name, since a call would not tell which is meant."""
    names = Counter(tool["function"]["name"] for tool in tools)
    for name, n_tools in names.most_common(1):
        if n_tools > 1:
            raise bad_request(f"{n_tools} tools are named {name!r}", param="tools")
    check_depth(tools, "the tool definitions are", "tools")
    size = len(orjson.dumps(tools))  # after the depth: orjson itself ends at 254 levels
    if size > max_bytes:
        raise bad_request(
            f"the tool definitions have {size} bytes; at most {max_bytes} are allowed",
            param="tools",
        )
