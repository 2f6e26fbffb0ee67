"""`serve_engine`: the engine's side of the channel.

One thread reads what the server sends and calls the engine; the scheduler's thread sends the
events of each step itself. Neither ever waits for the server.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from astrai.engine.child.channel import Channel
from astrai.engine.child.messages import (
    EngineFacts,
    EngineNumbers,
    decode,
    encode,
    error_message,
    read_grammar,
    read_request,
)
from astrai.engine.client import EngineClient
from astrai.engine.errors import EngineError, EngineStoppingError, RequestError
from astrai.engine.request import GenerationRequest, TokenEvent

if TYPE_CHECKING:
    from astrai.engine.engine import InferenceEngine

__all__ = ["EngineHost", "receive_settings", "serve_engine"]

_log = logging.getLogger(__name__)

_HEALTH_S = 0.5  # between two looks whether the engine is alive
_MAX_UNSENT_BYTES = 64 << 20
_GRAMMAR_THREADS = 4  # they only wait for the compiler
_FLUSH_S = 10.0  # for a server that is busy, to take the last events
_CUT = "the server did not take the text of this request in time"


def receive_settings(channel: Channel) -> dict[str, Any] | None:
    """Wait for the first message. None when the server is gone."""
    while True:
        contents = channel.receive(wait=True)
        if contents is None:
            return None
        for content in contents:
            settings: dict[str, Any] = decode(content)[1]
            return settings


def serve_engine(
    engine: InferenceEngine, channel: Channel, max_open: int, description: list[tuple[str, str]]
) -> int:
    """Say that the engine is ready and serve it until the server says stop, or for as long as
    both live. Returns the process's exit status.

    max_open, description: see `EngineFacts`."""
    host = EngineHost(engine.client, channel)
    facts = EngineFacts(
        engine.limits, max_open, engine.sampling_defaults, host.numbers(), description
    )
    channel.send(encode("ready", facts))
    end = host.run()
    if end == "gone":
        os._exit(0)  # nobody is left to wait for a last step
    if end == "stop":
        engine.shutdown()
    channel.flush(_FLUSH_S)
    return 0 if end == "stop" else 1


class EngineHost:
    """Serves one engine to the other end of a channel."""

    def __init__(self, client: EngineClient, channel: Channel) -> None:
        self._client = client
        self._channel = channel
        self._sink = self._on_events  # one object: the engine tells sinks apart in every step
        self._cut: set[str] = set()  # requests whose text has a gap; the scheduler's thread only
        self._threads = ThreadPoolExecutor(_GRAMMAR_THREADS, "astrai-grammar-wait")
        self._handlers: dict[str, Callable[..., None]] = {
            "submit": self._submit,
            "cancel": client.cancel,
            "ask": self._answer,
        }

    def run(self) -> Literal["stop", "gone", "dead"]:
        """Serve until the server says stop, the server is gone or the engine is dead."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        try:
            while True:
                has_news = poll.poll(_HEALTH_S * 1000)
                if not self._client.is_healthy():
                    return "dead"
                contents = self._channel.receive() if has_news else []
                if contents is None:
                    return "gone"
                for content in contents:
                    kind, *rest = decode(content)
                    if kind == "stop":
                        return "stop"
                    self._handlers[kind](*rest)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def numbers(self) -> EngineNumbers:
        return EngineNumbers(self._client.stats(), self._client.histograms())

    def _submit(self, fields: dict[str, Any]) -> None:
        request = read_request(fields)
        try:
            self._client.submit(request, self._sink)
        except EngineStoppingError as error:
            self._refuse(request, "cancelled", error)
        except (RequestError, EngineError) as error:
            self._refuse(request, "error", error)

    def _refuse(self, request: GenerationRequest, reason: Any, error: Exception) -> None:
        last = TokenEvent(
            request.request_id,
            "",
            [],
            None,
            reason,
            None,
            str(error),
            len(request.prompt_ids),
            0,
            0,
        )
        self._channel.send(encode("events", [last]))

    def _answer(self, number: int, question: str, argument: Any) -> None:
        if question == "numbers":
            self._channel.send(encode("answer", number, self.numbers()))
            return
        try:
            future: Future[Any]
            if question == "compile":
                grammar = read_grammar(argument)
                future = self._threads.submit(self._client.compile_grammar, grammar)
            else:
                future = self._client.inspect()
        except EngineError as error:
            self._channel.send(encode("refusal", number, error_message(error)))
            return
        future.add_done_callback(lambda done: self._tell(number, done))

    def _tell(self, number: int, done: Future[Any]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._channel.send(encode("answer", number, done.result()))
        else:
            assert isinstance(error, Exception)
            if not isinstance(error, (RequestError, EngineError)):
                _log.error("a question of the server failed", exc_info=error)
            self._channel.send(encode("refusal", number, error_message(error)))

    def _on_events(self, events: list[TokenEvent]) -> None:
        """The sink of all requests: called on the scheduler's thread, once a step.

        A server that leaves more than the limit unread gets no more text: each request that has
        some is cancelled, and its last event says so."""
        if self._cut or self._channel.n_unsent_bytes > _MAX_UNSENT_BYTES:
            events = self._without_text(events)
        if events:
            self._channel.send(encode("events", events))

    def _without_text(self, events: list[TokenEvent]) -> list[TokenEvent]:
        kept = []
        is_full = self._channel.n_unsent_bytes > _MAX_UNSENT_BYTES
        for event in events:
            has_gap = event.request_id in self._cut
            if event.finish_reason is not None:
                self._cut.discard(event.request_id)
                if has_gap:
                    event = event._replace(
                        text="", token_ids=[], logprobs=None, finish_reason="error", error=_CUT
                    )
                kept.append(event)
            elif is_full and not has_gap:
                self._cut.add(event.request_id)
                self._client.cancel(event.request_id)
            elif not has_gap:
                kept.append(event)
        return kept
