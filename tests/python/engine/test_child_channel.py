"""`Channel` and `messages`: frames arrive whole and in order, and mean what was sent."""

from __future__ import annotations

import math
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from astrai.engine.child import Channel, EngineFacts, EngineNumbers
from astrai.engine.child import messages as m
from astrai.engine.errors import EngineError, QueueFullError, RequestError
from astrai.engine.inspection import Inspection, PageCounts, RequestView
from astrai.engine.limits import RequestLimits
from astrai.engine.request import GenerationRequest, TokenEvent
from astrai.engine.stats import EngineStats
from astrai.engine.step_log import StepRecord
from astrai.sampling import SamplingParams, TokenLogprob
from astrai.structured import Grammar


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(one) for one in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def receive(channel: Channel, count: int) -> list[bytes]:
    contents: list[bytes] = []
    while len(contents) < count:
        read = channel.receive(wait=True)
        assert read is not None
        contents += read
    return contents


@pytest.mark.parametrize("seed", range(5))
def test_frames_arrive_whole_and_in_order(ends: tuple[Channel, Channel], seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 4, 5, 100, 65536, 3_000_000]) for _ in range(40)]
    sent = [rng.randbytes(size) for size in sizes]
    for content in sent:  # far more than the socket holds, and nobody reads yet
        ends[0].send(content)
    assert receive(ends[1], len(sent)) == sent
    assert ends[0].flush(10) and ends[0].n_unsent_bytes == 0


def test_frames_of_several_threads_stay_whole(ends: tuple[Channel, Channel]) -> None:
    def send(letter: bytes) -> None:
        for n in range(100):
            ends[0].send(letter * (n * 997))

    threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    contents = receive(ends[1], 300)
    for thread in threads:
        thread.join()
    for letter in (b"a", b"b", b"c"):
        assert [len(c) for c in contents if c[:1] == letter] == [n * 997 for n in range(1, 100)]
        assert all(not c.strip(c[:1]) for c in contents)


def test_sending_never_waits_for_a_reader(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(bytes(50_000_000))
    assert ends[0].n_unsent_bytes > 40_000_000
    assert not ends[0].flush(0.05)


def test_an_end_is_told_after_what_came_before(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(b"last")
    ends[0].close()
    assert ends[1].receive() == [b"last"]
    assert ends[1].receive() is None
    ends[1].send(b"for nobody")
    assert ends[0].receive() is None


def test_a_reader_with_nothing_to_read_gets_nothing(ends: tuple[Channel, Channel]) -> None:
    assert ends[0].receive() == []


def test_requests_come_back_as_they_were() -> None:
    params = SamplingParams(
        temperature=0.3,
        logit_bias={7: -1.5, 0: 2},
        seed=2**64 - 1,
        max_tokens=4,
        stop=("é", "\u2028"),
        stop_token_ids=(1, 2),
        shown_token_ids=(3,),
        logprobs=2,
    )
    for grammar in (None, Grammar.regex("a+")):
        request = GenerationRequest([1, 2], params, "tenant ☃", True, None, grammar, "req-1")
        _, fields = m.decode(m.encode("submit", request))
        assert m.read_request(fields) == request


def test_events_come_back_as_they_were() -> None:
    logprobs = [TokenLogprob(5, -0.1, ((5, -0.1), (6, -9999.0), (7, -math.inf)))]
    logprobs.append(TokenLogprob(8, -math.inf, ()))
    events = [
        TokenEvent("req-1", " a\x00\n", [5], logprobs, None, None, None, 3, 0, 1),
        TokenEvent("req-2", "", [], None, "stop", "é", None, 3, 2, 9),
        TokenEvent("req-3", "", [], None, "error", None, "why", 3, 2, 9),
    ]
    _, fields = m.decode(m.encode("events", events))
    assert [m.read_event(event) for event in fields] == events


def test_what_an_engine_tells_of_itself_comes_back_as_it_was() -> None:
    stats = EngineStats()
    stats.first_token(0.2)
    numbers = EngineNumbers(stats.snapshot(), stats.histograms())
    facts = EngineFacts(
        RequestLimits(50, 100, 90, (1, 2), 40), 3, {"top_p": 0.5}, numbers, [("a", "b")]
    )
    assert m.read_facts(m.decode(m.encode("ready", facts))[1]) == facts
    view = RequestView("req-1", True, 1, 2, 3, 4, 5, 6, 7, 0.5)
    steps = [StepRecord(1, 2.0, 0.5, 3, 4, 5, None, (0.25, 0.5))]
    look = Inspection(1.0, 1, 0, [view], PageCounts(5, 2, 2, 1, 16), 0, [], steps)
    assert m.read_inspection(m.decode(m.encode("answer", 1, look))[2]) == look


@pytest.mark.parametrize(
    "error",
    [RequestError("a", "invalid_grammar", "grammar"), QueueFullError("b", 2.5), EngineError("c")],
)
def test_errors_come_back_as_they_were(error: Exception) -> None:
    again = m.read_error(m.decode(m.encode("refusal", 1, m.error_message(error)))[2])
    assert type(again) is type(error) and vars(again) == vars(error) and str(again) == str(error)
