"""`ChildClient`: the engine of another process behind the seam that the server uses.

Requests are checked and counted here, so that `submit` answers at once. What the engine sends is
read on the event loop, which hands it on without another thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from astrai.engine.child.channel import Channel
from astrai.engine.child.messages import (
    EngineFacts,
    EngineNumbers,
    decode,
    encode,
    read_error,
    read_event,
    read_inspection,
    read_numbers,
)
from astrai.engine.engine_task import EventSink
from astrai.engine.errors import (
    EngineDeadError,
    EngineError,
    EngineStoppingError,
    RequestError,
    queue_full,
)
from astrai.engine.histogram import HistogramSnapshot, Latency
from astrai.engine.inspection import Inspection
from astrai.engine.request import FinishReason, GenerationRequest, TokenEvent, new_request_id
from astrai.structured import Grammar

__all__ = ["ChildClient"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_DEAD = "the engine's process has ended; restart the server"
_STOPPED = "the engine is shutting down"
_NUMBERS_S = 2.0  # after which the last known ones are told


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    sink: EventSink
    n_prompt: int
    submitted_at: float


@dataclass(frozen=True, slots=True)
class _Question:
    """read: makes of an answer what the future is to hold."""

    future: Future[Any]
    read: Callable[[Any], Any]


class ChildClient:
    """An EngineClient. Reads nothing until `attach`."""

    def __init__(self, channel: Channel, facts: EngineFacts) -> None:
        """channel: to an engine that is ready; facts: what it said then."""
        self._channel = channel
        self._limits = facts.limits
        self._max_open = facts.max_open
        self._numbers = facts.numbers
        self._durations = Latency()
        self._question_numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()  # guards all below
        self._open: dict[str, _OpenRequest] = {}
        self._questions: dict[int, _Question] = {}
        self._is_dead = False
        self._is_stopping = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read what the engine sends on this loop, until `detach` or its end. Called on it."""
        self._loop = loop
        loop.add_reader(self._channel.fileno(), self._read)

    def detach(self) -> None:
        """Stop reading. Called on the loop. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._channel.fileno())

    # EngineClient

    def submit(self, request: GenerationRequest, on_event: EventSink) -> str:
        """As every client, but for `request.selection`: the engine's process has its own."""
        if request.selection is not None:
            raise RequestError("selection cannot reach an engine in another process")
        self._limits.check(request)
        request_id = request.request_id or new_request_id()
        content = _encoded("submit", replace(request, request_id=request_id))
        with self._changed:
            if self._is_dead or self._is_stopping:
                raise self._end_error()
            if len(self._open) >= self._max_open:
                raise queue_full(len(self._open), self._durations.mean(default=1.0))
            n_prompt = len(request.prompt_ids)
            self._open[request_id] = _OpenRequest(on_event, n_prompt, time.perf_counter())
        self._channel.send(content)
        return request_id

    def compile_grammar(self, grammar: Grammar) -> None:
        self._ask("compile", grammar, _as_it_is).result()

    def cancel(self, request_id: str) -> None:
        with self._changed:
            is_open = request_id in self._open
        if is_open:
            self._channel.send(encode("cancel", request_id))

    def stats(self) -> dict[str, object]:
        return self._latest_numbers().stats

    def histograms(self) -> dict[str, HistogramSnapshot]:
        return self._latest_numbers().histograms

    def inspect(self) -> Future[Inspection]:
        return self._ask("inspect", None, read_inspection)

    def is_healthy(self) -> bool:
        return not self._is_dead

    def drain(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            self._is_stopping = True
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    def stop(self) -> None:
        """Have the engine end what is open, with an event each, and its process."""
        with self._changed:
            self._is_stopping = True
        self._channel.send(encode("stop"))

    # Questions

    def _ask(self, question: str, argument: Any, read: Callable[[Any], T]) -> Future[T]:
        number = next(self._question_numbers)
        content = _encoded("ask", number, question, argument)
        future: Future[T] = Future()
        with self._changed:
            if self._is_dead:
                raise self._end_error()
            self._questions[number] = _Question(future, read)
        self._channel.send(content)
        return future

    def _latest_numbers(self) -> EngineNumbers:
        """Those of this moment, or the last ones of an engine that does not answer."""
        with suppress(EngineError, FutureTimeoutError):
            self._numbers = self._ask("numbers", None, read_numbers).result(_NUMBERS_S)
        return self._numbers

    def _end_error(self) -> EngineError:
        """Why nothing is served any more."""
        return EngineStoppingError(_STOPPED) if self._is_stopping else EngineDeadError(_DEAD)

    # The loop

    def _read(self) -> None:
        contents = self._channel.receive()
        if contents is None:
            self._end()
            return
        for content in contents:
            kind, *rest = decode(content)
            if kind == "events":
                self._deliver([read_event(fields) for fields in rest[0]])
            else:
                self._resolve(kind, *rest)

    def _deliver(self, events: list[TokenEvent]) -> None:
        """One call for each sink. One that raises has lost its reader: its requests are
        cancelled."""
        now = time.perf_counter()
        deliveries: dict[EventSink, list[TokenEvent]] = {}
        with self._changed:
            for event in events:
                request = self._open.get(event.request_id)
                if request is None:
                    continue
                if event.finish_reason is not None:
                    del self._open[event.request_id]
                    self._durations.observe(now - request.submitted_at)
                deliveries.setdefault(request.sink, []).append(event)
            if not self._open:
                self._changed.notify_all()
        for sink, batch in deliveries.items():
            try:
                sink(batch)
            except Exception:
                _log.exception("an event sink raised; its requests are cancelled")
                for request_id in {event.request_id for event in batch}:
                    self.cancel(request_id)

    def _resolve(self, kind: str, number: int, content: Any) -> None:
        with self._changed:
            question = self._questions.pop(number)
        if not question.future.set_running_or_notify_cancel():
            return
        if kind == "answer":
            question.future.set_result(question.read(content))
        else:
            question.future.set_exception(read_error(content))

    def _end(self) -> None:
        """The process is gone: tell all who wait for it."""
        self.detach()
        self._channel.close()
        with self._changed:
            self._is_dead = True
            reason: FinishReason = "cancelled" if self._is_stopping else "error"
            error = self._end_error()
            last = [
                TokenEvent(
                    request_id, "", [], None, reason, None, str(error), request.n_prompt, 0, 0
                )
                for request_id, request in self._open.items()
            ]
            questions, self._questions = self._questions, {}
        for question in questions.values():
            if question.future.set_running_or_notify_cancel():
                question.future.set_exception(error)
        self._deliver(last)


def _as_it_is(answer: Any) -> Any:
    return answer


def _encoded(*message: Any) -> bytes:
    try:
        return encode(*message)
    except TypeError as error:
        raise RequestError(
            f"the request cannot be written as JSON for the engine: {error}"
        ) from None
