"""One orchestrator for all protocols, and what a protocol has to say about itself.

A protocol is a request model and a `ResponseBuilder`; the handler submits, collects, streams,
notices errors and clients that go. Adding a protocol needs no change here.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from astrai.engine import GenerationRequest, TokenEvent
from astrai.sampling import SamplingParams, TokenLogprob
from astrai.server.access_log import access_record
from astrai.server.answer import Answer
from astrai.server.body import read_model
from astrai.server.connection import StreamSocket, stream_socket
from astrai.server.disconnect import ClientGone, DisconnectWatch
from astrai.server.engine_link import EngineLink
from astrai.server.errors import ApiError, not_loaded
from astrai.server.fields import GenerationModel
from astrai.server.sse import TextFrame, encode_json
from astrai.server.streamed_answer import StreamedAnswer, raise_fault
from astrai.server.streaming import EventStream
from astrai.server.text_link import TextLink
from astrai.structured import Grammar
from astrai.text.answer import TextPiece

log = logging.getLogger("astrai.server")

RequestT = TypeVar("RequestT", bound=GenerationModel)

# The template's own beginning is cached after the first chat; told in each usage, it would make the
# counts of two equal short requests differ. Smaller hits are in /stats only.
MIN_REPORTED_HIT = 64

# Seeds are 64-bit words; choice i of a seeded request draws with seed + i.
_SEED_WORD = 2**64


@dataclass(slots=True)
class ResponseContext:
    """What every part of one answer repeats, and how to sample it.

    n: choices of each prompt. wants_ids: a stream reports ids as they come, even without text.
    new_answer: makes the reader of each choice's text. grammar: what the text must look like, and
    the request's field that says so.
    """

    response_id: str
    created: int
    model: str
    stream: bool
    sampling: SamplingParams
    n: int = 1
    wants_ids: bool = False
    new_answer: Callable[[], Answer] = Answer
    grammar: tuple[Grammar, str] | None = None


@dataclass(slots=True)
class Choice:
    """What one generation gave so far."""

    index: int
    prompt_ids: list[int]
    answer: Answer = field(default_factory=Answer)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    n_placed: int = 0  # of the logprobs, those that a block of text has
    finish_reason: str | None = None
    stop_string: str | None = None
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_reasoning: int = 0  # tokens while the model was thinking, to an event or two

    @property
    def reported_hit(self) -> int:
        """Prompt tokens from the prefix cache as usage tells them; see MIN_REPORTED_HIT."""
        return self.n_cached if self.n_cached >= MIN_REPORTED_HIT else 0

    def add(self, event: TokenEvent) -> None:
        self.answer.add(event.text, is_end=event.finish_reason is not None)
        self.token_ids.extend(event.token_ids)
        if event.logprobs:
            self.logprobs.extend(event.logprobs)
        if self.n_placed < len(self.logprobs):
            self._place_logprobs(is_end=event.finish_reason is not None)
        self.finish_reason = event.finish_reason
        self.stop_string = event.stop_string
        self.n_prompt = event.n_prompt
        self.n_cached = event.n_cached
        self.n_output = event.n_output
        if self.answer.blocks and self.answer.blocks[-1].kind == "reasoning":
            self.n_reasoning += len(event.token_ids)

    def _place_logprobs(self, is_end: bool) -> None:
        """Give logprobs to the text that their tokens led to, which may come events later."""
        texts = [block for piece, block in self.answer.news if isinstance(piece, TextPiece)]
        if is_end and not texts:
            texts = [block for block in self.answer.blocks[-1:] if block.kind == "text"]
        if texts:
            texts[0].logprobs += self.logprobs[self.n_placed :]
            self.n_placed = len(self.logprobs)


class ResponseBuilder(ABC, Generic[RequestT]):
    """A protocol's shapes. `prepare` runs on a thread and may block, unless the request `is_brief`;
    the rest must not.

    The `format_stream_*` methods return complete SSE frames, possibly none (b"").
    """

    prompt_field = "messages"  # the request's field that errors about the prompt name

    def is_brief(self, request: RequestT) -> bool:
        """Does `prepare` take less time than a thread to give it to?"""
        return False

    @abstractmethod
    def prepare(
        self, request: RequestT, engine: TextLink
    ) -> tuple[list[list[int]], ResponseContext, tuple[str, ...]]:
        """(token ids of each prompt, context, stop strings). Raises ApiError for bad input."""

    @abstractmethod
    def format_stream_start(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        """What comes before any text; counts of the first choice's prompt are known."""

    @abstractmethod
    def format_chunk(self, ctx: ResponseContext, choice: Choice, event: TokenEvent) -> bytes:
        """News of one choice, its end included; `choice` already holds the event."""

    def text_frame(self, ctx: ResponseContext, choice: Choice) -> TextFrame | None:
        """What `format_chunk` gives for an event that is nothing but text which passes the choice's
        answer. Of such an event `choice` gets the count alone: where a later method needs the
        block's whole text, the frame has to keep it. None where there is no such frame; asked anew
        after each chunk."""
        return None

    @abstractmethod
    def format_stream_end(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        """What comes after the last choice's end."""

    @abstractmethod
    def format_stream_error(self, error: ApiError) -> bytes:
        """An error after the first byte, and the end of the stream."""

    @abstractmethod
    def format_response(self, ctx: ResponseContext, choices: list[Choice]) -> dict[str, Any]:
        """The whole answer of a request that is not streamed."""


class ProtocolHandler(Generic[RequestT]):
    """Serves one request. Errors before the first byte are raised as ApiError."""

    def __init__(
        self,
        request: RequestT,
        engine: EngineLink,
        builder: ResponseBuilder[RequestT],
        age_s: float = 0.0,
        socket: StreamSocket | None = None,
    ) -> None:
        """age_s: how long ago the request arrived, which counts against its deadline. socket: of
        the client, where a stream may write to it."""
        self.choices: list[Choice] = []  # as far as they have come
        self._request = request
        self._engine = engine
        self._builder = builder
        self._socket = socket
        self._deadline_at = engine.deadline_at(request.deadline_ms, age_s)

    async def handle(self, watch: DisconnectWatch) -> Response:
        """The answer. An EventStream owns `watch` from here on. Raises ClientGone, ApiError."""
        return await watch.guard(self._handle(watch))

    async def _handle(self, watch: DisconnectWatch) -> Response:
        engine = self._engine
        ctx, choices, requests = await engine.before(self._deadline_at, self._prepare())
        self.choices = choices
        if ctx.stream:
            return await self._handle_stream(requests, ctx, choices, watch)
        return await self._handle_non_stream(requests, ctx, choices)

    async def _prepare(self) -> tuple[ResponseContext, list[Choice], list[GenerationRequest]]:
        """Everything that the engine needs, a compiled grammar included."""
        engine, builder, request = self._engine, self._builder, self._request
        if builder.is_brief(request):
            prompts, ctx, stops = builder.prepare(request, engine)
        else:
            prompts, ctx, stops = await engine.run(builder.prepare, request, engine)
        choices, requests = self._expand(prompts, ctx, stops)
        if ctx.grammar is not None:
            await engine.compile_grammar(*ctx.grammar)
        return ctx, choices, requests

    def _expand(
        self, prompts: list[list[int]], ctx: ResponseContext, stops: tuple[str, ...]
    ) -> tuple[list[Choice], list[GenerationRequest]]:
        """One generation for each choice of each prompt; those of one prompt share its prefix."""
        self._engine.check_count(len(prompts) * ctx.n)
        sampling = replace(ctx.sampling, stop=stops)
        choices: list[Choice] = []
        requests: list[GenerationRequest] = []
        for prompt_ids in prompts:
            self._engine.check_prompt(prompt_ids, self._builder.prompt_field)
            for i in range(ctx.n):
                params = sampling
                if i and sampling.seed is not None:
                    params = replace(sampling, seed=(sampling.seed + i) % _SEED_WORD)
                choices.append(Choice(len(choices), prompt_ids, ctx.new_answer()))
                requests.append(
                    GenerationRequest(
                        prompt_ids,
                        params,
                        every_token=ctx.stream and ctx.wants_ids,
                        grammar=None if ctx.grammar is None else ctx.grammar[0],
                    )
                )
        return choices, requests

    async def _handle_non_stream(
        self, requests: list[GenerationRequest], ctx: ResponseContext, choices: list[Choice]
    ) -> Response:
        batches = self._engine.generate(requests, self._deadline_at)
        try:
            async for batch in batches:
                for idx, event in batch:
                    raise_fault(event)
                    choices[idx].add(event)
        finally:
            await batches.aclose()
        body = encode_json(self._builder.format_response(ctx, choices))
        return Response(body, media_type="application/json")

    async def _handle_stream(
        self,
        requests: list[GenerationRequest],
        ctx: ResponseContext,
        choices: list[Choice],
        watch: DisconnectWatch,
    ) -> Response:
        answer = StreamedAnswer(self._builder, ctx, choices, self._socket)
        batches = self._engine.generate(requests, self._deadline_at, answer.take)
        # The first batch tells whether the requests were accepted, so that a refusal is a status
        # code, and how much of the prompt was cached, which message_start reports.
        try:
            first = await anext(batches)
            for _, event in first:
                raise_fault(event)
        except BaseException:
            await batches.aclose()
            raise
        return EventStream(answer.frames(first, batches), watch, self._socket is not None)


async def serve_protocol(
    request: Request, model: type[RequestT], builder: ResponseBuilder[RequestT]
) -> Response:
    """Route body of every generating protocol: validate, then 503 without a model, then answer."""
    body = await read_model(request, model)
    engine = require_engine(request)
    watch = DisconnectWatch(request.receive)
    record = access_record(request)
    socket = stream_socket(request.scope, engine.step_writer)
    handler = ProtocolHandler(engine.fill_in(body), engine, builder, record.seconds(), socket)
    streaming = False
    try:
        response = await handler.handle(watch)
        streaming = isinstance(response, EventStream)
        return response
    except ClientGone:
        return Response(status_code=499)  # nobody reads it; the access log does
    finally:
        record.outcomes = handler.choices
        if not streaming:
            watch.close()


def require_engine(request: Request) -> EngineLink:
    """The app's engine. Raises 503 "Engine not initialized" when there is none."""
    link: EngineLink | None = request.app.state.engine_link
    if link is None:
        raise not_loaded()
    return link
