"""What the handlers use of an engine: text to ids off the event loop, requests in, events out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import cached_property
from typing import Any, TypeVar

from astrai.engine import (
    AsyncEventRouter,
    GenerationRequest,
    HistogramSnapshot,
    InferenceEngine,
    TokenEvent,
)
from astrai.engine import errors as engine_errors
from astrai.server.dialect import ChatDialect
from astrai.server.errors import ApiError, bad_request
from astrai.server.inspector_feed import InspectorFeed
from astrai.server.settings import ServerSettings
from astrai.server.structured_output import grammar_refusal
from astrai.structured import Grammar
from astrai.text import ChatTemplate, TemplateError, Tokenizer, encode_chat

T = TypeVar("T")
# Batches of (choice index, event): everything that was ready when the consumer asked.
EventBatches = AsyncGenerator[list[tuple[int, TokenEvent]], None]

_TEXT_THREADS = 4
_GRAMMAR_THREADS = 4  # they only wait for the compiler
_WARM_UP_S = 2.0  # after the start, and between two looks whether the engine is idle


class EngineLink:
    """One engine as the server sees it. Made and used on the server's event loop.

    `encode_*` and `decode` block and belong on `run()`'s threads; the rest is for the loop.
    """

    def __init__(self, engine: InferenceEngine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.max_seq_len: int = engine.max_seq_len
        self.vocab_size: int = engine.config.vocab_size
        self._router = AsyncEventRouter(engine.client, asyncio.get_running_loop())
        self.inspector = InspectorFeed(engine.client)
        self._threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="astrai-text")
        self._grammar_threads = ThreadPoolExecutor(_GRAMMAR_THREADS, "astrai-grammar-wait")
        self._token_bytes: list[bytes] | None = None
        self._call_faults: Counter[str] = Counter()
        flags = engine.tokenizer.special_flags() if engine.tokenizer is not None else b""
        self._special_ids = frozenset(i for i, is_special in enumerate(flags) if is_special)

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """work(*args) on a thread for text; the event loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._grammar_threads.shutdown(wait=False, cancel_futures=True)

    async def compile_grammar(self, grammar: Grammar, param: str) -> None:
        """Have a grammar ready before its requests are queued. Raises a 400 that names `param`,
        the request's field, and a 429 while too many wait for theirs."""
        loop = asyncio.get_running_loop()
        compile_it = self.engine.client.compile_grammar
        try:
            await loop.run_in_executor(self._grammar_threads, compile_it, grammar)
        except engine_errors.RequestError as error:
            raise grammar_refusal(error, param) from None
        except engine_errors.QueueFullError as error:
            raise _queue_full(error) from None

    async def warm_grammars(self) -> None:
        """Compile a first grammar while nothing runs. It builds the compiler's view of the
        vocabulary under the interpreter's lock, for some 10 us a token, which would hold up a
        step."""
        while True:
            await asyncio.sleep(_WARM_UP_S)
            if not self.engine.client.stats()["active_tasks"]:
                break
        with suppress(ApiError, ImportError):  # a request with a grammar will be told
            await self.compile_grammar(Grammar.json_object(), "response_format")

    # text -------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises a 400 for a model folder without tokenizer files: it serves token ids only."""
        if self.engine.tokenizer is None:
            raise bad_request(
                "this model has no tokenizer and serves token ids only: send token ids as the "
                "prompt of /v1/completions",
                code="no_tokenizer",
            )
        return self.engine.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        if self.engine.chat_template is None:
            raise bad_request(
                "this model has no chat template: use /v1/completions", code="no_chat_template"
            )
        return self.engine.chat_template

    def encode_text(
        self, text: str, add_special_tokens: bool = False, parse_special: bool = True
    ) -> list[int]:
        self._refuse_hopeless(len(text), "prompt")
        return self.tokenizer.encode(text, add_special_tokens, parse_special)

    @cached_property
    def dialect(self) -> ChatDialect:
        """How this model's chats are written. Blocks at the first use; raises as encode_chat."""
        return ChatDialect(
            self.chat_template,
            self.tokenizer,
            self.settings.tool_parser,
            self.settings.reasoning_parser,
            self._call_faults,
        )

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation. variables: further ones for the template.

        Raises a 400 with the template's message."""
        tokenizer, template = self.tokenizer, self.chat_template
        self._refuse_hopeless(sum(len(message["content"]) for message in messages), "messages")
        messages, tools = self.dialect.conversation(messages, tools)
        try:
            return encode_chat(tokenizer, template, messages, tools=tools, **(variables or {}))
        except TemplateError as error:
            raise bad_request(
                f"the model's chat template refuses these messages: {error}",
                param="messages",
                code="template_error",
            ) from None
        except RecursionError:
            raise bad_request(
                "the messages are nested too deeply for the model's chat template",
                param="messages",
                code="template_error",
            ) from None

    def token_bytes(self) -> list[bytes]:
        """The bytes of each token id; empty for ids without text and without a tokenizer."""
        if self._token_bytes is None:
            tokenizer = self.engine.tokenizer
            known = tokenizer.token_bytes() if tokenizer is not None else []
            self._token_bytes = known + [b""] * (self.vocab_size - len(known))
        return self._token_bytes

    def spelled_bytes(self, token_id: int, skip_special: bool) -> bytes:
        """What a token adds to the text: nothing where special tokens are skipped."""
        return (
            b"" if skip_special and token_id in self._special_ids else self.token_bytes()[token_id]
        )

    def check_prompt(self, prompt_ids: list[int], param: str) -> None:
        """Refuse prompts that leave no room for one new token, or hold ids the model lacks.

        param: the field of the request that the prompt came from.
        """
        if not prompt_ids:
            raise bad_request("the prompt is empty", param=param, code="empty_prompt")
        self._refuse_longer_than(len(prompt_ids), self.prompt_limit(), param)
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.vocab_size:
            raise bad_request(
                f"the prompt holds a token id outside 0 to {self.vocab_size - 1}",
                param=param,
                code="invalid_token_id",
            )

    def check_count(self, n_generations: int) -> None:
        """Refuse a request of more generations than may be open at once: it can never be queued."""
        limit = self.settings.max_batch_size + self.settings.max_queue
        if n_generations > limit:
            raise bad_request(
                f"the request asks for {n_generations} generations; this server holds at most "
                f"{limit} at once",
                param="n",
            )

    def prompt_limit(self) -> int:
        """Tokens that a prompt may have."""
        limit = self.max_seq_len - 1  # one position is left for the answer
        if self.settings.max_prompt_tokens is not None:
            limit = min(limit, self.settings.max_prompt_tokens)
        return limit

    def _refuse_longer_than(
        self, n_tokens: int, limit: int, param: str, at_least: str = ""
    ) -> None:
        if n_tokens > limit:
            raise bad_request(
                f"the prompt has {at_least}{n_tokens} tokens; at most {limit} fit "
                f"(the context is {self.max_seq_len} tokens)",
                param=param,
                code="context_length_exceeded",
            )

    def _refuse_hopeless(self, n_chars: int, param: str) -> None:
        """Refuse a text that is too long however it is tokenised, before the work of doing so."""
        if self._longest_piece:
            n_tokens = n_chars // self._longest_piece
            self._refuse_longer_than(n_tokens, self.prompt_limit(), param, "more than ")

    @cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self.token_bytes()), default=0)

    # generation -------------------------------------------------------------------------------

    def deadline_at(self, deadline_ms: int | None, age_s: float) -> float | None:
        """When a request that arrived age_s ago has to end, by the loop's clock; None for never.

        The request's own limit and the server's count from the arrival; the earlier one holds.
        """
        limits = [self.settings.request_timeout_s, deadline_ms and deadline_ms / 1000]
        seconds = min((limit for limit in limits if limit is not None), default=None)
        return None if seconds is None else asyncio.get_running_loop().time() + seconds - age_s

    async def before(self, deadline_at: float | None, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. Raises a 408 when the deadline comes first."""
        if deadline_at is None:
            return await work
        left_s = deadline_at - asyncio.get_running_loop().time()
        try:
            return await asyncio.wait_for(work, left_s)
        except asyncio.TimeoutError:
            raise _too_late() from None

    async def generate(
        self, requests: list[GenerationRequest], deadline_at: float | None = None
    ) -> EventBatches:
        """Submit all requests and yield their events in batches; closing it cancels what is not
        finished, and so does the deadline.

        Raises ApiError from its first batch on; nothing is left running then.
        """
        try:
            async with aclosing(self._router.stream_all(requests, deadline_at)) as batches:
                async for batch in batches:
                    yield batch
        except engine_errors.RequestError as error:
            raise ApiError(400, str(error), code=error.code, param=error.param) from None
        except engine_errors.QueueFullError as error:
            raise _queue_full(error) from None
        except engine_errors.DeadlineError:
            raise _too_late() from None
        except engine_errors.EngineStoppingError:
            raise ApiError(
                503, "the server is shutting down", code="shutting_down", retry_after_s=5
            ) from None
        except engine_errors.EngineDeadError:
            raise ApiError(
                503, "the engine has stopped after a fault", code="engine_dead"
            ) from None

    def is_healthy(self) -> bool:
        return self.engine.client.is_healthy()

    def stats(self) -> dict[str, Any]:
        """The engine's counters, and the tool calls that were returned as text, by reason."""
        return {**self.engine.client.stats(), "total_tool_call_faults": dict(self._call_faults)}

    def histograms(self) -> dict[str, HistogramSnapshot]:
        return self.engine.client.histograms()


def _too_late() -> ApiError:
    return ApiError(
        408,
        "the answer did not end before the request's deadline and was given up",
        code="deadline_exceeded",
        is_final=True,
    )


def _queue_full(error: engine_errors.QueueFullError) -> ApiError:
    return ApiError(429, str(error), code="queue_full", retry_after_s=error.retry_after_s)
