"""What the handlers use of an engine: text to ids off the event loop, requests in, events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from astrai.engine import (
    AsyncEventRouter,
    EngineClient,
    GenerationRequest,
    HistogramSnapshot,
    TakeEvent,
    TokenEvent,
)
from astrai.engine import errors as engine_errors
from astrai.engine.child import ChildClient
from astrai.server.connection import StepWriter
from astrai.server.errors import ApiError
from astrai.server.fields import GenerationModel
from astrai.server.inspector_feed import InspectorFeed
from astrai.server.settings import ServerSettings
from astrai.server.structured_output import grammar_refusal
from astrai.server.text_link import TextLink
from astrai.structured import Grammar

if TYPE_CHECKING:
    from astrai.models import ModelConfig
    from astrai.text import ChatTemplate, Tokenizer

T = TypeVar("T")
Body = TypeVar("Body", bound=GenerationModel)
# Batches of (choice index, event): everything that was ready when the consumer asked.
EventBatches = AsyncGenerator[list[tuple[int, TokenEvent]], None]

_TEXT_THREADS = 4
_GRAMMAR_THREADS = 4  # they only wait for the compiler
_WARM_UP_S = 2.0  # after the start, and between two looks whether the engine is idle


class ServedEngine(Protocol):
    """What the server uses of an engine: an `InferenceEngine` or a `ChildEngine`."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def sampling_defaults(self) -> Mapping[str, float]: ...
    @property
    def client(self) -> EngineClient: ...
    def shutdown(self) -> None: ...


class EngineLink(TextLink):
    """One engine as the server sees it. Made and used on the server's event loop.

    `encode_*` and `decode` block and belong on `run()`'s threads; the rest is for the loop.
    """

    def __init__(self, engine: ServedEngine, settings: ServerSettings) -> None:
        super().__init__(
            engine.tokenizer,
            engine.chat_template,
            engine.config.vocab_size,
            engine.max_seq_len,
            settings,
        )
        self.engine = engine
        self.step_writer = StepWriter()
        loop = asyncio.get_running_loop()
        self._child = engine.client if isinstance(engine.client, ChildClient) else None
        if self._child is not None:
            self._child.attach(loop)
        self._router = AsyncEventRouter(engine.client, loop, self.step_writer.flush)
        self.inspector = InspectorFeed(engine.client)
        self._threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="astrai-text")
        self._grammar_threads = ThreadPoolExecutor(_GRAMMAR_THREADS, "astrai-grammar-wait")

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """work(*args) on a thread for text; the event loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._grammar_threads.shutdown(wait=False, cancel_futures=True)
        if self._child is not None:
            self._child.detach()

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
        except engine_errors.EngineDeadError:
            raise _dead() from None

    async def warm_grammars(self) -> None:
        """Compile a first grammar while nothing runs. It builds the compiler's view of the
        vocabulary under the interpreter's lock, for some 10 us a token, which would hold up a
        step."""
        while True:
            await asyncio.sleep(_WARM_UP_S)
            stats = await self.run(self.engine.client.stats)
            if not stats["active_tasks"]:
                break
        with suppress(ApiError, ImportError):  # a request with a grammar will be told
            await self.compile_grammar(Grammar.json_object(), "response_format")

    def fill_in(self, body: Body) -> Body:
        """The request with the model's own defaults of sampling where it names no value."""
        given = body.model_fields_set
        missing = {
            name: value
            for name, value in self.engine.sampling_defaults.items()
            if name not in given and name in type(body).model_fields
        }
        return body.model_copy(update=missing) if missing else body

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
        self,
        requests: list[GenerationRequest],
        deadline_at: float | None = None,
        take: TakeEvent | None = None,
    ) -> EventBatches:
        """Submit all requests and yield their events in batches; closing it cancels what is not
        finished, and so does the deadline. take: see `AsyncEventRouter.stream_all`.

        Raises ApiError from its first batch on; nothing is left running then.
        """
        try:
            async with aclosing(self._router.stream_all(requests, deadline_at, take)) as batches:
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
            raise _dead() from None

    def is_healthy(self) -> bool:
        return self.engine.client.is_healthy()

    def stats(self) -> dict[str, Any]:
        """The engine's counters, and the tool calls that were returned as text, by reason. This
        and `histograms` block."""
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


def _dead() -> ApiError:
    return ApiError(503, "the engine has stopped after a fault", code="engine_dead")


def _queue_full(error: engine_errors.QueueFullError) -> ApiError:
    return ApiError(429, str(error), code="queue_full", retry_after_s=error.retry_after_s)
