"""The seam between the engine and everything that asks it for text.

`EngineClient` is all that the server knows of an engine; every call is thread-safe.
`InProcessClient` is the implementation beside the scheduler's thread, `child.ChildClient` the one
for an engine in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from astrai.engine.engine_task import EngineTask, EventSink
from astrai.engine.errors import QueueFullError, RequestError
from astrai.engine.histogram import HistogramSnapshot
from astrai.engine.inspection import Inspection
from astrai.engine.limits import RequestLimits
from astrai.engine.request import GenerationRequest, new_request_id
from astrai.engine.scheduler import InferenceScheduler
from astrai.engine.scheduling_state import HostPool, generation_room
from astrai.extension import AttentionBackend, Selection, current_selection
from astrai.structured import (
    CompiledGrammar,
    Grammar,
    GrammarBusyError,
    GrammarCompiler,
    GrammarError,
)

__all__ = ["EngineClient", "InProcessClient", "capture_selection"]


def capture_selection(default_backend: AttentionBackend | None) -> Selection:
    """The attention selection of a request made here: the innermost `attn_backend(...)` context,
    else the engine's own backend, else what ASTR_BACKEND says, else automatic choice."""
    selection = current_selection()
    if default_backend is None or selection.source == "attn_backend(...)":
        return selection
    return Selection(default_backend, "InferenceEngine(backend=...)")


class EngineClient(Protocol):
    """Submit requests, get events. Events come on the engine's thread, one call per step with all
    events of the requests that share the sink; the last event of a request has a finish_reason."""

    def submit(self, request: GenerationRequest, on_event: EventSink) -> str:
        """Queue a request and return its id. on_event must not block.

        Raises RequestError, QueueFullError, EngineDeadError or EngineStoppingError; nothing is
        queued then.
        """
        ...

    def compile_grammar(self, grammar: Grammar) -> None:
        """Get a grammar ready, so that `submit` finds it. Blocks, for its time limit at most:
        not for an event loop. Raises RequestError or QueueFullError."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request within a step or two; unknown ids are ignored."""
        ...

    def stats(self) -> dict[str, object]:
        """Counters and latencies. May wait for another process: not for an event loop."""
        ...

    def histograms(self) -> dict[str, HistogramSnapshot]:
        """What `EngineStats.histograms` says. May wait as `stats` does."""
        ...

    def inspect(self) -> Future[Inspection]:
        """A look at requests, pages, prefix tree and last steps, taken between two steps.

        Raises EngineDeadError or EngineStoppingError; so does the future when that happens first.
        """
        ...

    def is_healthy(self) -> bool: ...

    def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse new requests and wait for the open ones. True when all have ended."""
        ...


class InProcessClient:
    """Checks requests on the caller's thread and hands them to the scheduler."""

    def __init__(
        self,
        scheduler: InferenceScheduler,
        pool: HostPool,
        vocab_size: int,
        end_ids: tuple[int, ...],
        grammars: GrammarCompiler,
        has_text: bool = True,
        default_backend: AttentionBackend | None = None,
        memory_bytes: Mapping[str, int] | None = None,
        max_edits: int | None = None,
    ) -> None:
        """end_ids: ids that end a text unless ignore_eos. grammars: compiles those of requests.
        has_text: False without a tokenizer, when every token is told at once because no text will
        ever tell it. default_backend: attention backend of requests that were made under no
        selection. memory_bytes: what the engine holds, by name, for `stats`. max_edits: see
        `Sampler`."""
        self._scheduler = scheduler
        self.limits = RequestLimits(
            vocab_size, pool.max_seq_len, generation_room(pool, 0), end_ids, max_edits
        )
        self._grammars = grammars
        self._has_text = has_text
        self._default_backend = default_backend
        self._memory_bytes = dict(memory_bytes or {})

    def submit(self, request: GenerationRequest, on_event: EventSink) -> str:
        params = request.params
        hash(on_event)  # sinks are dict keys on the scheduler's thread: fail here, not there
        max_tokens = self.limits.check(request)
        selection = request.selection
        if selection is None:
            selection = capture_selection(self._default_backend)
        task = EngineTask(
            task_id=request.request_id or new_request_id(),
            token_ids=list(request.prompt_ids),
            namespace=request.namespace,
            selection=selection,
            params=params,
            stop_ids=self.limits.stop_ids(params),
            max_tokens=max_tokens,
            on_event=on_event,
            every_token=request.every_token or not self._has_text,
            n_prompt=len(request.prompt_ids),
            grammar=None if request.grammar is None else self._compiled(request.grammar),
        )
        self._scheduler.submit(task)
        return task.task_id

    def compile_grammar(self, grammar: Grammar) -> None:
        self._compiled(grammar)

    def cancel(self, request_id: str) -> None:
        self._scheduler.cancel(request_id)

    def stats(self) -> dict[str, object]:
        return {**self._scheduler.stats(), "memory_bytes": self._memory_bytes}

    def histograms(self) -> dict[str, HistogramSnapshot]:
        return self._scheduler.histograms()

    def inspect(self) -> Future[Inspection]:
        return self._scheduler.inspect()

    def is_healthy(self) -> bool:
        return self._scheduler.is_healthy()

    def drain(self, timeout_s: float | None = None) -> bool:
        return self._scheduler.drain(timeout_s)

    def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        try:
            return self._grammars.compile(grammar)
        except GrammarError as error:
            raise RequestError(str(error), "invalid_grammar", "grammar") from None
        except GrammarBusyError as error:
            raise QueueFullError(str(error), retry_after_s=1.0) from None
