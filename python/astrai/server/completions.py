"""POST /v1/completions: raw prompts, several at once, text or token ids.

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

from typing import Any

from astrai.engine import TokenEvent
from astrai.sampling import TokenLogprob
from astrai.server.completions_models import CompletionRequest
from astrai.server.errors import ApiError, bad_request
from astrai.server.openai_common import (
    check_token_ids,
    error_frames,
    finite_logprob,
    new_id,
    now,
    sampling_params,
    stop_strings,
    token_text,
    usage_frame,
    usage_of,
)
from astrai.server.protocol import Choice, ResponseBuilder, ResponseContext
from astrai.server.sse import DONE, TextFrame, frame
from astrai.server.structured_output import StructuredFields, openai_grammar
from astrai.server.text_link import TextLink

_BRIEF_IDS = 16384  # of prompts: looked through in half a millisecond


class CompletionResponseBuilder(ResponseBuilder[CompletionRequest]):
    """Shapes of one text completion; made anew for each request."""

    prompt_field = "prompt"

    def is_brief(self, request: CompletionRequest) -> bool:
        prompts = request.prompts()
        return (
            not request.echo
            and request.model_fields_set.isdisjoint(StructuredFields.model_fields)
            and all(isinstance(prompt, list) for prompt in prompts)
            and sum(map(len, prompts)) <= _BRIEF_IDS
        )

    def prepare(
        self, request: CompletionRequest, engine: TextLink
    ) -> tuple[list[list[int]], ResponseContext, tuple[str, ...]]:
        self._engine = engine
        self._request = request
        prompts = request.prompts()
        _check_support(request)
        limit = engine.settings.max_prompts
        if len(prompts) * request.n > limit:
            raise bad_request(
                f"{len(prompts)} prompts times n {request.n} is more than {limit}", param="prompt"
            )
        sampling = sampling_params(
            request,
            engine,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=request.max_tokens,
            logprobs=request.logprobs,
        )
        stops = stop_strings(request.stop, engine, "stop")
        grammar = openai_grammar(request)
        ids = [self._prompt_ids(prompt) for prompt in prompts]
        self._echoes = [self._echo(prompt) for prompt in prompts] if request.echo else []
        self._text_frames: dict[int, TextFrame] = {}  # by index of the choice
        self._started: set[int] = set()  # choices whose first chunk is written
        self._offsets: dict[int, int] = {}  # choice to characters of the tokens reported so far
        ctx = ResponseContext(
            new_id("cmpl-"),
            now(),
            request.model,
            request.stream,
            sampling,
            request.n,
            wants_ids=request.return_token_ids,
            grammar=grammar,
        )
        return ids, ctx, stops

    def format_stream_start(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        # An echo is text, so it does not wait for the first token.
        if not self._echoes:
            return b""
        return b"".join(self._chunk(ctx, choice, None) for choice in choices)

    def format_chunk(self, ctx: ResponseContext, choice: Choice, event: TokenEvent) -> bytes:
        has_tokens = (self._request.logprobs is not None or ctx.wants_ids) and event.token_ids
        if event.text or has_tokens or event.finish_reason is not None:
            return self._chunk(ctx, choice, event)
        return b""

    def text_frame(self, ctx: ResponseContext, choice: Choice) -> TextFrame | None:
        if self._request.logprobs is not None or ctx.wants_ids:
            return None
        if choice.index not in self._text_frames:
            shaped = {**_empty(choice.index), "text": TextFrame.SLOT}
            example = frame({**_head(ctx), "choices": [shaped]})
            self._text_frames[choice.index] = TextFrame(example)
        return self._text_frames[choice.index]

    def format_stream_end(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        options = self._request.stream_options
        wanted = options.include_usage if options is not None else None
        return usage_frame(_head(ctx), _empty(0), usage_of(choices, ctx.n), wanted) + DONE

    def format_stream_error(self, error: ApiError) -> bytes:
        return error_frames(error)

    def format_response(self, ctx: ResponseContext, choices: list[Choice]) -> dict[str, Any]:
        return {
            **_head(ctx),
            "choices": [self._choice(choice, ctx) for choice in choices],
            "usage": usage_of(choices, ctx.n),
        }

    def _choice(self, choice: Choice, ctx: ResponseContext) -> dict[str, Any]:
        shaped: dict[str, Any] = {
            "index": choice.index,
            "text": self._echo_of(choice, ctx) + choice.answer.text,
            "logprobs": self._logprobs(choice, choice.logprobs),
            "finish_reason": choice.finish_reason,
        }
        if ctx.wants_ids:
            shaped["token_ids"] = choice.token_ids
            shaped["prompt_token_ids"] = choice.prompt_ids
        return shaped

    def _chunk(self, ctx: ResponseContext, choice: Choice, event: TokenEvent | None) -> bytes:
        """One chunk: the news of an event, or (None) the echo alone."""
        is_first = choice.index not in self._started
        self._started.add(choice.index)
        shaped: dict[str, Any] = {
            "index": choice.index,
            "text": event.text if event is not None else self._echo_of(choice, ctx),
            "logprobs": self._logprobs(choice, event.logprobs or [] if event is not None else []),
            "finish_reason": choice.finish_reason if event is not None else None,
        }
        if ctx.wants_ids:
            shaped["token_ids"] = event.token_ids if event is not None else []
            if is_first:
                shaped["prompt_token_ids"] = choice.prompt_ids
        return frame({**_head(ctx), "choices": [shaped]})

    def _logprobs(self, choice: Choice, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        """The legacy logprobs object: parallel lists, offsets counted in the choice's own text."""
        if self._request.logprobs is None:
            return None
        tokens, offsets, tops = [], [], []
        offset = self._offsets.get(choice.index, 0)
        for entry in entries:
            text = token_text(entry.token_id, self._engine)
            tokens.append(text)
            offsets.append(offset)
            if self._engine.spelled_bytes(entry.token_id, self._request.skip_special_tokens):
                offset += len(text)
            tops.append(
                {token_text(i, self._engine): finite_logprob(value) for i, value in entry.top}
            )
        self._offsets[choice.index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [finite_logprob(entry.logprob) for entry in entries],
            "top_logprobs": tops if self._request.logprobs else None,
            "text_offset": offsets,
        }

    def _prompt_ids(self, prompt: str | list[int]) -> list[int]:
        request, engine = self._request, self._engine
        if isinstance(prompt, str):
            return engine.encode_text(prompt, request.add_special_tokens, request.parse_special)
        check_token_ids(prompt, engine.vocab_size, "prompt")
        return prompt

    def _echo(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._engine.tokenizer.decode(prompt, skip_special_tokens=False)

    def _echo_of(self, choice: Choice, ctx: ResponseContext) -> str:
        return self._echoes[choice.index // ctx.n] if self._echoes else ""


def _head(ctx: ResponseContext) -> dict[str, Any]:
    return {
        "id": ctx.response_id,
        "object": "text_completion",
        "created": ctx.created,
        "model": ctx.model,
    }


def _empty(index: int) -> dict[str, Any]:
    """A choice of a chunk without news."""
    return {"index": index, "text": "", "logprobs": None, "finish_reason": None}


def _check_support(request: CompletionRequest) -> None:
    if request.suffix:
        raise bad_request(
            "suffix (fill in the middle) is not supported by this server",
            param="suffix",
            code="unsupported_value",
        )
    if request.best_of is not None and request.best_of != request.n:
        raise bad_request(
            "best_of other than n is not supported by this server",
            param="best_of",
            code="unsupported_value",
        )
    if request.echo and request.logprobs is not None:
        raise bad_request(
            "echo with logprobs is not supported: this server keeps no logprobs of prompt tokens",
            param="echo",
            code="unsupported_value",
        )
