"""POST /v1/responses: OpenAI's newer protocol, over the same pipeline as a chat completion.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from astrai.engine import TokenEvent
from astrai.sampling import TokenLogprob
from astrai.server.answer import AnswerBlock, call_faults
from astrai.server.errors import ApiError
from astrai.server.openai_chat import OpenAIResponseBuilder
from astrai.server.openai_common import chat_logprobs, new_id, now
from astrai.server.protocol import Choice, ResponseBuilder, ResponseContext
from astrai.server.response_store import ResponseStore
from astrai.server.responses_events import ItemEvents, Logprobs, item_id_of, output_item
from astrai.server.responses_input import chat_request, check_supported, own_name, stored_items
from astrai.server.responses_models import InputFields, ResponsesRequest
from astrai.server.sse import TextFrame
from astrai.server.text_link import TextLink

Prepared = tuple[list[list[int]], ResponseContext, tuple[str, ...]]  # as `prepare` returns it


class ResponsesBuilder(ResponseBuilder[ResponsesRequest]):
    """Shapes of one response; made anew for each request."""

    prompt_field = "input"

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def prepare(self, request: ResponsesRequest, engine: TextLink) -> Prepared:
        check_supported(request)
        self._request = request
        self._engine = engine
        self._items = conversation(request, self._store)
        prompts, ctx, stops = prepare_chat(request, engine, self._items)
        ctx.response_id = new_id(self._store.id_prefix)
        self._events = ItemEvents(partial(_logprobs, engine))
        return prompts, ctx, stops

    def format_stream_start(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        response = self._response(ctx, [], "in_progress")
        created = self._events.frame("response.created", response=response)
        return created + self._events.frame("response.in_progress", response=response)

    def format_chunk(self, ctx: ResponseContext, choice: Choice, event: TokenEvent) -> bytes:
        return b"".join(self._events.tell(piece, block) for piece, block in choice.answer.news)

    def text_frame(self, ctx: ResponseContext, choice: Choice) -> TextFrame | None:
        blocks = choice.answer.blocks
        if not blocks or ctx.sampling.logprobs is not None:
            return None
        return self._events.text_frame(blocks[-1])

    def format_stream_end(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        choice = choices[0]
        status = _status(choice)
        events = self._events
        frames = b"" if choice.answer.blocks else events.begin_empty_message()
        frames += events.close(status)
        response = self._finish(ctx, events.items, choice)
        return frames + events.frame(f"response.{status}", response=response)

    def format_stream_error(self, error: ApiError) -> bytes:
        failed = {**self._last, "status": "failed"}
        failed["error"] = {"code": "server_error", "message": error.message}
        return self._events.frame("response.failed", response=failed)

    def format_response(self, ctx: ResponseContext, choices: list[Choice]) -> dict[str, Any]:
        choice = choices[0]
        blocks = choice.answer.blocks or [AnswerBlock("text")]
        items = []
        for block in blocks:
            # A call that was cut off is text.
            is_whole = block is not blocks[-1] or block.kind == "call"
            status = "completed" if is_whole else _status(choice)
            logprobs = _logprobs(self._engine, block.logprobs)
            items.append(output_item(block, item_id_of(block), status, logprobs))
        return self._finish(ctx, items, choice)

    def _finish(
        self, ctx: ResponseContext, items: list[dict[str, Any]], choice: Choice
    ) -> dict[str, Any]:
        """The whole response; stored when the request asks for it."""
        response = self._response(ctx, items, _status(choice), choice)
        if self._request.store:
            self._store.add(response, self._items)
        return response

    def _response(
        self,
        ctx: ResponseContext,
        items: list[dict[str, Any]],
        status: str,
        choice: Choice | None = None,
    ) -> dict[str, Any]:
        request = self._request
        is_cut = status == "incomplete"
        self._last = {
            "id": ctx.response_id,
            "object": "response",
            "created_at": ctx.created,
            "completed_at": now() if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": ctx.model,
            "output": items,
            "usage": None if choice is None else _usage(choice),
            **_echo(request),
        }
        if choice is not None and choice.answer.faults:
            self._last["tool_call_faults"] = call_faults(choice.answer)
        return self._last


def _logprobs(engine: TextLink, entries: list[TokenLogprob]) -> Logprobs:
    if not entries:
        return []
    shaped: Logprobs = chat_logprobs(entries, engine, True)["content"]
    return shaped


def conversation(request: InputFields, store: ResponseStore) -> list[dict[str, Any]]:
    """Everything that the model is given but the instructions, oldest first."""
    items = stored_items(request)
    if request.previous_response_id is None:
        return items
    previous = store.get(request.previous_response_id, "previous_response_id")
    return previous.conversation + items


def prepare_chat(request: InputFields, engine: TextLink, items: list[dict[str, Any]]) -> Prepared:
    """What the chat completion of these items prepares. Errors name this protocol's fields.

    With truncation "auto" a conversation that is too long loses its oldest turns.
    """

    def prepare(kept: list[dict[str, Any]]) -> Prepared:
        return OpenAIResponseBuilder().prepare(chat_request(request, kept), engine)

    try:
        if request.truncation == "disabled":
            return prepare(items)
        return _longest_that_fits(items, engine, prepare)
    except ApiError as error:
        error.param = own_name(error.param)
        raise


def _longest_that_fits(
    items: list[dict[str, Any]], engine: TextLink, prepare: Callable[..., Prepared]
) -> Prepared:
    """Bisects over the turns that may come first: those that a user begins."""
    starts = [i for i, item in enumerate(items) if item.get("role") == "user"]
    starts = starts if starts and starts[0] == 0 else [0, *starts]
    low, high = 0, len(starts) - 1  # the last turn is tried whatever its length
    best = None
    while low < high:
        middle = (low + high) // 2
        prepared = _prepare_or_none(items[starts[middle] :], engine, prepare)
        if prepared is None:
            low = middle + 1
        else:
            best, high = prepared, middle
    return best if best is not None else prepare(items[starts[low] :])


def _prepare_or_none(
    kept: list[dict[str, Any]], engine: TextLink, prepare: Callable[..., Prepared]
) -> Prepared | None:
    try:
        prepared = prepare(kept)
    except ApiError as error:
        if error.code == "context_length_exceeded":
            return None
        raise
    return prepared if len(prepared[0][0]) <= engine.prompt_limit() else None


def _status(choice: Choice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _usage(choice: Choice) -> dict[str, Any]:
    return {
        "input_tokens": choice.n_prompt,
        "input_tokens_details": {"cached_tokens": choice.reported_hit, "cache_write_tokens": 0},
        "output_tokens": choice.n_output,
        "output_tokens_details": {"reasoning_tokens": choice.n_reasoning},
        "total_tokens": choice.n_prompt + choice.n_output,
    }


def _echo(request: ResponsesRequest) -> dict[str, Any]:
    """What a response repeats of its request."""
    reasoning, text = request.reasoning, request.text
    shape = text.format if text is not None else None
    choice = request.tool_choice
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning is not None else None,
            "summary": reasoning.summary if reasoning is not None else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store,
        "temperature": request.temperature,
        "text": {
            "format": shape.model_dump(by_alias=True, exclude_none=True)
            if shape is not None
            else {"type": "text"},
            "verbosity": (text.verbosity if text is not None else None) or "medium",
        },
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": request.truncation,
        "user": request.user,
    }
