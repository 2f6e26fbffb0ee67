"""`ChildClient` and `EngineHost` over a real channel: a fault of either reaches all who wait."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from astrai.engine import GenerationRequest, Inspection, TokenEvent
from astrai.engine.child import Channel, ChildClient, EngineFacts, EngineHost, host
from astrai.engine.errors import (
    EngineDeadError,
    EngineStoppingError,
    QueueFullError,
    RequestError,
)
from astrai.engine.limits import RequestLimits
from astrai.engine.stats import EngineStats
from astrai.sampling import SamplingParams
from astrai.structured import Grammar

Sink = Callable[[list[TokenEvent]], None]


class PuppetClient:
    """An EngineClient whose events are made by the test. alive: what is_healthy says."""

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.cancelled: list[str] = []
        self.alive = True
        self.refusal: Exception | None = None
        self.looks: list[Future[Inspection]] = []
        self._stats = EngineStats()

    def submit(self, request: GenerationRequest, on_event: Sink) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.sinks[request.request_id] = on_event
        return request.request_id

    def compile_grammar(self, grammar: Grammar) -> None:
        raise RequestError(f"no {grammar.text}", "invalid_grammar", "grammar")

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def stats(self) -> dict[str, object]:
        return {"active_tasks": len(self.sinks)}

    def histograms(self) -> Any:
        return self._stats.histograms()

    def inspect(self) -> Future[Inspection]:
        self.looks.append(Future())
        return self.looks[-1]

    def is_healthy(self) -> bool:
        return self.alive

    def drain(self, timeout_s: float | None = None) -> bool:
        return True


class Pair:
    """Both sides, and a loop that reads for the client."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.engine = PuppetClient()
        self.channel, self.far = Channel(ours), Channel(theirs)
        self.host = EngineHost(self.engine, self.far)
        limits = RequestLimits(vocab_size=50, max_seq_len=100, room=100)
        facts = EngineFacts(limits, 2, {}, self.host.numbers(), [])
        self.client = ChildClient(self.channel, facts)
        self.events: list[TokenEvent] = []
        self.calls = 0
        self.loop = asyncio.new_event_loop()
        self._reading = threading.Thread(target=self.loop.run_forever)
        self._hosting = threading.Thread(target=self._host)

    def start(self) -> None:
        self._reading.start()
        self.loop.call_soon_threadsafe(self.client.attach, self.loop)
        self._hosting.start()

    def sink(self, events: list[TokenEvent]) -> None:
        self.calls += 1
        self.events += events

    def submit(self) -> str:
        return self.client.submit(GenerationRequest([1, 2, 3]), self.sink)

    def tell(self, *events: TokenEvent) -> None:
        """As the scheduler would after a step."""
        (sink,) = {self.engine.sinks[event.request_id] for event in events}
        sink(list(events))

    def close(self) -> None:
        self.far.close()
        self._hosting.join(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._reading.join(10)
        self.client.detach()
        self.loop.close()
        self.channel.close()

    def _host(self) -> None:
        self.end = self.host.run()
        self.far.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    pair.start()
    yield pair
    pair.close()


def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it does not come to hold")


def news(request_id: str, text: str, reason: Any = None) -> TokenEvent:
    return TokenEvent(request_id, text, [1], None, reason, None, None, 3, 0, 1)


def test_a_step_s_events_reach_their_sink_in_one_call(pair: Pair) -> None:
    ids = [pair.submit(), pair.submit()]
    until(lambda: len(pair.engine.sinks) == 2)
    step = [news(ids[0], "a"), news(ids[1], "b")]
    pair.tell(*step)
    until(lambda: pair.events == step)
    assert pair.calls == 1


def test_as_many_as_the_engine_holds_may_be_open(pair: Pair) -> None:
    first, _ = pair.submit(), pair.submit()
    with pytest.raises(QueueFullError, match="2 requests are open"):
        pair.submit()
    until(lambda: len(pair.engine.sinks) == 2)
    pair.tell(news(first, "", "stop"))
    until(lambda: bool(pair.events))
    assert pair.submit() not in (first, "")


@pytest.mark.parametrize(
    "request_, code",
    [
        (GenerationRequest([]), "invalid_value"),
        (GenerationRequest([50]), "invalid_value"),
        (GenerationRequest([1] * 100), "context_length_exceeded"),
        (GenerationRequest([1], SamplingParams(top_p=3)), "invalid_value"),
        (GenerationRequest([1], namespace="\ud800"), "invalid_value"),
        (GenerationRequest([1], grammar=Grammar.regex("\ud800")), "invalid_value"),
        (GenerationRequest([1], selection="cuda"), "invalid_value"),
    ],
)
def test_bad_requests_are_refused_before_they_are_sent(
    pair: Pair, request_: GenerationRequest, code: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        pair.client.submit(request_, pair.sink)
    assert refusal.value.code == code
    assert pair.client.drain(0) and not pair.engine.sinks


def test_what_the_engine_refuses_ends_with_its_words(pair: Pair) -> None:
    pair.engine.refusal = RequestError("no such grammar", "invalid_grammar", "grammar")
    pair.submit()
    until(lambda: bool(pair.events))
    assert (pair.events[0].finish_reason, pair.events[0].error) == ("error", "no such grammar")


def test_only_open_requests_are_cancelled(pair: Pair) -> None:
    pair.client.cancel("req-unknown")
    request_id = pair.submit()
    pair.client.cancel(request_id)
    until(lambda: pair.engine.cancelled == [request_id])


def test_a_sink_that_raises_has_its_requests_cancelled(pair: Pair) -> None:
    def broken(events: list[TokenEvent]) -> None:
        raise RuntimeError("the loop is closed")

    request_id = pair.client.submit(GenerationRequest([1]), broken)
    until(lambda: bool(pair.engine.sinks))
    pair.tell(news(request_id, "a"))
    until(lambda: pair.engine.cancelled == [request_id])


def test_questions_are_answered_by_the_engine(pair: Pair) -> None:
    pair.submit()
    until(lambda: pair.client.stats() == {"active_tasks": 1})
    assert set(pair.client.histograms()) == set(EngineStats().histograms())
    with pytest.raises(RequestError, match="no x") as refusal:
        pair.client.compile_grammar(Grammar.regex("x"))
    assert refusal.value.code == "invalid_grammar"


def test_a_drain_refuses_and_waits(pair: Pair) -> None:
    request_id = pair.submit()
    until(lambda: bool(pair.engine.sinks))
    assert not pair.client.drain(0.01)
    with pytest.raises(EngineStoppingError):
        pair.submit()
    pair.tell(news(request_id, "", "stop"))
    assert pair.client.drain(10)


def test_the_end_of_the_process_reaches_all_who_wait(pair: Pair) -> None:
    request_id = pair.submit()
    look = pair.client.inspect()
    until(lambda: bool(pair.engine.looks))
    known = pair.client.stats()
    pair.far.close()
    with pytest.raises(EngineDeadError):
        look.result(10)
    until(lambda: bool(pair.events))
    (last,) = pair.events
    assert (last.request_id, last.finish_reason) == (request_id, "error")
    assert last.error is not None and "process has ended" in last.error
    assert not pair.client.is_healthy() and pair.client.stats() == known
    with pytest.raises(EngineDeadError):
        pair.submit()
    with pytest.raises(EngineDeadError):
        pair.client.compile_grammar(Grammar.regex("x"))
    assert pair.client.drain(0)


def test_an_end_that_was_asked_for_cancels_what_is_open(pair: Pair) -> None:
    pair.submit()
    pair.client.stop()
    until(lambda: bool(pair.events))
    assert pair.events[0].finish_reason == "cancelled" and pair.end == "stop"
    with pytest.raises(EngineStoppingError):
        pair.submit()


def test_a_host_whose_engine_died_ends(pair: Pair) -> None:
    pair.engine.alive = False
    until(lambda: not pair.client.is_healthy())
    assert pair.end == "dead"


def test_a_server_that_does_not_read_neither_stops_the_engine_nor_fills_memory(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_MAX_UNSENT_BYTES", 1_000_000)
    request_id, other = pair.submit(), pair.submit()
    until(lambda: len(pair.engine.sinks) == 2)
    awake = threading.Event()
    pair.loop.call_soon_threadsafe(awake.wait)  # the loop stands still
    text = "a" * 100_000
    for _ in range(1000):  # 100 MB
        pair.tell(news(request_id, text))
    assert pair.far.n_unsent_bytes < 2_000_000
    assert pair.engine.cancelled == [request_id]
    pair.tell(news(request_id, "tail", "cancelled"), news(other, "", "stop"))
    awake.set()
    until(lambda: any(event.request_id == other for event in pair.events))
    ends = {e.request_id: e for e in pair.events if e.finish_reason is not None}
    assert ends[other].finish_reason == "stop"
    assert ends[request_id].finish_reason == "error" and ends[request_id].text == ""
    assert "did not take" in str(ends[request_id].error)
