"""Text streams against a naive model: decode everything so far, look for stops in it, and cut.

Properties that need no model are at the end; the C++ cases are in tests/cpp/test_token_text.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai._C import TextEvent, TextStreams, TokenTable

BYTES = [bytes([byte]) for byte in range(256)]
# Characters of one to four bytes, cut ones, ill-formed ones, and pieces that stop strings overlap.
WORDS = [
    *(b"a", b"b", b"ab", b"ba", b"aab", b" ", b"", b"at noon", b" the b"),
    *("é".encode(), "語".encode(), "🧪".encode(), "☃".encode(), "é🧪a".encode(), b"\x00"),
    *(b"\xf0\x9f", b"\xa7\xaa", b"\xe8\xaa", b"\x9e", b"\xc3", b"\xa9", b"\xe2\x98"),
    *(b"\xff", b"\xc0\x80", b"\xed\xa0", b"\xf4\x90", b"\xe0\x80", b"\xbf"),
    *(b"<end>", b"<pad>"),
]
N_SPECIAL = 2
PIECES = WORDS + BYTES
SPECIAL = [piece in (b"<end>", b"<pad>") for piece in PIECES]
TABLE = TokenTable(PIECES, SPECIAL)
END_ID = PIECES.index(b"<end>")

# Half of the draws come from the first five words: stops then overlap themselves and each other.
token_ids = st.one_of(
    *[st.integers(0, 4)] * 2, st.integers(0, len(WORDS) - 1), st.integers(0, len(PIECES) - 1)
)
stop_strings = st.text("ab", min_size=1, max_size=6) | st.text(
    "ab é語🧪☃\ufffd", min_size=1, max_size=5
)


def decode(raw: bytes) -> str:
    """Text of the bytes with U+FFFD for ill-formed ones, without a character that the end cuts off.

    codecs' incremental decoder is no model: it holds ED A0, which can never become a character.
    """
    text = raw.decode("utf-8", "replace")
    return text[:-1] if any(is_cut_character(raw[-n:]) for n in (1, 2, 3)) else text


def is_cut_character(tail: bytes) -> bool:
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


@dataclass
class NaiveStream:
    """One stream, recomputed from all its bytes at each token."""

    stops: list[str]
    stop_ids: list[int]
    max_tokens: int
    min_tokens: int = 0
    include_stop: bool = False
    skip_special: bool = True
    raw: bytes = b""
    n_tokens: int = 0
    released: str = ""
    finish: str | None = None
    stop_string: str | None = None
    stop_token: int | None = None
    chars_seen: int = field(default=0, repr=False)

    def push(self, token_id: int) -> str:
        self.n_tokens += 1
        can_stop = self.n_tokens >= self.min_tokens
        if can_stop and token_id in self.stop_ids:
            self.finish, self.stop_token = "stop", token_id
            return self._release(decode(self.raw))
        if not (self.skip_special and SPECIAL[token_id]):
            self.raw += PIECES[token_id]
        text = decode(self.raw)
        first_new, self.chars_seen = self.chars_seen, len(text)
        for end in range(first_new + 1, len(text) + 1):
            ending = [stop for stop in self.stops if text[:end].endswith(stop)]
            if ending and can_stop:
                self.stop_string = max(ending, key=lambda stop: len(stop.encode()))
                self.finish = "stop"
                kept = 0 if self.include_stop else len(self.stop_string)
                return self._release(text[: end - kept])
        if self.n_tokens == self.max_tokens:
            self.finish = "length"
            return self._release(text)
        return self._release(text[: len(text) - self._n_held(text)])

    def _n_held(self, text: str) -> int:
        return max(
            (n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )

    def _release(self, text: str) -> str:
        assert text.startswith(self.released)
        delta, self.released = text[len(self.released) :], text
        return delta


def push_one(streams: TextStreams, handle: int, token_id: int) -> TextEvent | None:
    events = streams.push_batch([handle], [token_id])
    assert len(events) <= 1
    return events[0] if events else None


def run(streams: TextStreams, handle: int, ids: list[int]) -> tuple[str, TextEvent | None]:
    """Pushes until the ids or the stream end; the joined deltas and the last event."""
    joined, last = "", None
    for token_id in ids:
        last = push_one(streams, handle, token_id)
        if last is not None:
            joined += last.text
            if last.finish is not None:
                break
    return joined, last


@given(
    ids=st.lists(token_ids, min_size=1, max_size=40),
    stops=st.lists(stop_strings, max_size=4),
    stop_ids=st.lists(token_ids, max_size=3),
    data=st.data(),
)
def test_every_event_equals_that_of_the_naive_stream(
    ids: list[int], stops: list[str], stop_ids: list[int], data: st.DataObject
) -> None:
    max_tokens = data.draw(st.integers(1, len(ids) + 2))
    min_tokens = data.draw(st.integers(0, max_tokens))
    include_stop, skip_special = data.draw(st.booleans()), data.draw(st.booleans())
    naive = NaiveStream(stops, stop_ids, max_tokens, min_tokens, include_stop, skip_special)
    streams = TextStreams(TABLE)
    handle = streams.open(stops, stop_ids, max_tokens, min_tokens, include_stop, skip_special)

    for token_id in ids:
        event = push_one(streams, handle, token_id)
        delta = naive.push(token_id)
        if event is None:
            assert (delta, naive.finish) == ("", None)
        else:
            assert event.text == delta
            assert (event.handle, event.n_tokens) == (handle, naive.n_tokens)
            assert event.finish == naive.finish
            assert event.stop_string == naive.stop_string
            assert event.stop_token == naive.stop_token
        assert streams.text(handle) == naive.released
        if naive.finish is not None:
            return
    assert streams.finish(handle) == decode(naive.raw)[len(naive.released) :]


@given(raw=st.binary(max_size=24) | st.text(max_size=12).map(lambda text: text.encode()[:-1]))
def test_bytes_decode_as_python_replaces_them_but_a_cut_end_is_dropped(raw: bytes) -> None:
    streams = TextStreams(TABLE)
    handle = streams.open([], [], len(raw) + 1)
    joined, _ = run(streams, handle, [len(WORDS) + byte for byte in raw])
    joined += streams.finish(handle)

    assert joined == streams.text(handle) == decode(raw)
    # Python replaces the cut end by one U+FFFD; that is the only difference there can be.
    assert raw.decode("utf-8", "replace") in (joined, joined + "\ufffd")


@given(raw=st.lists(st.sampled_from(WORDS), max_size=12).map(b"".join), data=st.data())
def test_the_text_does_not_depend_on_how_its_bytes_are_cut_into_tokens(
    raw: bytes, data: st.DataObject
) -> None:
    stops = data.draw(st.lists(stop_strings, max_size=4))
    n_cuts = st.lists(st.integers(0, len(raw)), max_size=6)

    def stream_of(cuts: list[int]) -> tuple[str, str | None]:
        bounds = [0, *sorted(cuts), len(raw)]
        pieces = [raw[begin:end] for begin, end in pairwise(bounds)]
        streams = TextStreams(TokenTable(pieces, bytes(len(pieces))))
        handle = streams.open(stops, [], len(pieces) + 1)
        joined, last = run(streams, handle, list(range(len(pieces))))
        return joined + streams.finish(handle), last.stop_string if last else None

    assert stream_of(data.draw(n_cuts)) == stream_of(data.draw(n_cuts)) == stream_of([])


@given(st.data())
def test_streams_of_one_batch_do_not_disturb_each_other(data: st.DataObject) -> None:
    streams = TextStreams(TABLE)
    live: dict[int, NaiveStream] = {}
    closed: list[int] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["open", "push", "push", "close"]))
        if action == "open" or not live:
            stops = data.draw(st.lists(stop_strings, max_size=2))
            max_tokens = data.draw(st.integers(1, 12))
            handle = streams.open(stops, [END_ID], max_tokens)
            assert handle not in live and handle not in closed
            live[handle] = NaiveStream(stops, [END_ID], max_tokens)
        elif action == "close":
            handle = data.draw(st.sampled_from(sorted(live)))
            streams.close(handle)
            closed.append(handle)
            del live[handle]
        else:
            running = [handle for handle, naive in live.items() if naive.finish is None]
            chosen = [handle for handle in running if data.draw(st.booleans())]
            ids = [data.draw(token_ids) for _ in chosen]
            events = {event.handle: event for event in streams.push_batch(chosen, ids)}
            for handle, token_id in zip(chosen, ids, strict=True):
                delta = live[handle].push(token_id)
                event = events.pop(handle, None)
                assert (event.text if event else "") == delta
                assert (event.finish if event else None) == live[handle].finish
            assert not events
        assert streams.n_open == len(live)
        for handle in closed:
            with pytest.raises(ValueError, match="is not open"):
                streams.text(handle)
    for handle, naive in live.items():
        assert streams.text(handle) == naive.released


@given(data=st.data())
def test_the_texts_of_a_step_say_what_its_events_say(data: st.DataObject) -> None:
    by_event, by_text = TextStreams(TABLE), TextStreams(TABLE)
    n_streams = data.draw(st.integers(1, 5))
    handles = []
    for _ in range(n_streams):
        stops = data.draw(st.lists(stop_strings, max_size=2))
        max_tokens = data.draw(st.integers(1, 6))
        handles.append(by_event.open(stops, [END_ID], max_tokens))
        assert by_text.open(stops, [END_ID], max_tokens) == handles[-1]
    while handles:
        pushed = data.draw(st.permutations(handles))
        ids = [data.draw(token_ids) for _ in pushed]
        events = {event.handle: event for event in by_event.push_batch(pushed, ids)}
        texts, ends = by_text.push_texts(pushed, ids)
        assert texts == [events[h].text if h in events else "" for h in pushed]
        assert ends == [event for event in events.values() if event.finish is not None]
        handles = [handle for handle in handles if handle not in {end.handle for end in ends}]


def test_of_a_handle_that_repeats_one_place_has_the_text() -> None:
    streams = TextStreams(TABLE)
    handle, other = streams.open([], [], 2), streams.open([], [], 9)
    texts, (end,) = streams.push_texts([handle, other, handle], [0, 1, 1])
    assert texts == ["ab", "b", ""]
    assert (end.handle, end.text, end.finish) == (handle, "ab", "length")


@pytest.mark.parametrize("group", [1, 2, 3, 5])
def test_no_replacement_character_inside_a_whole_text(group: int) -> None:
    text = "ďábel 🧪 語"
    raw = text.encode()
    pieces = [raw[begin : begin + group] for begin in range(0, len(raw), group)]
    streams = TextStreams(TokenTable(pieces, bytes(len(pieces))))
    handle = streams.open([], [], 100)
    joined = ""
    for token_id in range(len(pieces)):
        event = push_one(streams, handle, token_id)
        assert event is None or "\ufffd" not in event.text
        joined += event.text if event else ""
    assert joined == text


def test_a_stop_string_that_spans_tokens_and_words_is_never_shown() -> None:
    pieces = [b"... at", b" no", b"on", b" the", b" boat", b" left"]
    streams = TextStreams(TokenTable(pieces, bytes(6)))
    handle = streams.open(["on the b"], [], 100)
    joined, last = run(streams, handle, [0, 1, 2, 3, 4, 5])
    assert joined == "... at no"
    assert last is not None
    assert (last.finish, last.stop_string, last.n_tokens) == ("stop", "on the b", 5)


def test_text_held_for_a_stop_string_that_never_comes_is_not_lost() -> None:
    streams = TextStreams(TokenTable([b"the bo", b"at", b" left", b"oat"], bytes(4)))
    handle = streams.open(["oat☃"], [], 4)
    joined, last = run(streams, handle, [0, 1, 2, 3])
    assert joined == "the boat leftoat"
    assert last is not None and last.finish == "length"


def test_a_cut_character_at_the_last_token_is_in_no_text() -> None:
    streams = TextStreams(TokenTable([b"x\xf0\x9f\xa7"], bytes(1)))
    handle = streams.open([], [], 1)
    (event,) = streams.push_batch([handle], [0])
    assert (event.text, event.finish) == ("x", "length")
    assert streams.text(handle) == "x"


def test_stop_tokens_and_stop_strings_are_text_before_min_tokens() -> None:
    streams = TextStreams(TokenTable([b"no", b"<e>"], bytes(2)))
    handle = streams.open(["no"], [1], max_tokens=10, min_tokens=3)
    joined, last = run(streams, handle, [0, 1, 0])
    assert joined == "no<e>"
    assert last is not None and (last.stop_string, last.n_tokens) == ("no", 3)


def test_a_match_may_overlap_one_that_came_before_min_tokens() -> None:
    streams = TextStreams(TokenTable([b"xaba", b"ba"], bytes(2)))
    handle = streams.open(["aba"], [], max_tokens=10, min_tokens=2)
    joined, last = run(streams, handle, [0, 1])
    assert joined == "xab"
    assert last is not None and last.stop_string == "aba"


def test_of_stops_that_end_at_the_same_byte_the_longest_wins() -> None:
    streams = TextStreams(TokenTable([b"xaab"], bytes(1)))
    handle = streams.open(["b", "aab", "ab"], [], 10)
    (event,) = streams.push_batch([handle], [0])
    assert (event.text, event.stop_string) == ("x", "aab")


def test_special_ids_give_text_only_when_asked() -> None:
    streams = TextStreams(TABLE)
    shown = streams.open([], [], 10, skip_special=False)
    hidden = streams.open([], [], 10)
    (event,) = streams.push_batch([shown, hidden], [END_ID, END_ID])
    assert (event.handle, event.text) == (shown, "<end>")


def test_shown_ids_give_text_where_special_ones_are_skipped() -> None:
    table = TokenTable([b"a", b"[TOOL_CALLS]", b"[INST]"], b"\0\1\1")
    streams = TextStreams(table)
    handle = streams.open([], [], 10, shown_ids=[1])
    joined, _ = run(streams, handle, [0, 2, 1, 0])
    assert joined == "a[TOOL_CALLS]a"
    with pytest.raises(ValueError, match=r"shown_ids has 3; the table has ids 0 to 2"):
        streams.open([], [], 10, shown_ids=[3])


def test_only_one_leading_blank_is_stripped_and_only_at_the_start() -> None:
    streams = TextStreams(TokenTable([b"", b"  a", b" b"], bytes(3)))
    handle = streams.open([], [], 10, strip_leading_space=True)
    joined, _ = run(streams, handle, [0, 1, 2])
    assert joined == " a b"


def test_a_table_without_text_counts_tokens_and_ends() -> None:
    streams = TextStreams(TokenTable([b""] * 5, bytes(5)))
    handle = streams.open(["x"], [4], 3)
    assert push_one(streams, handle, 0) is None
    other = streams.open([], [4], 3)
    (event,) = streams.push_batch([other], [4])
    assert (event.finish, event.stop_token, event.text) == ("stop", 4, "")
    _, last = run(streams, handle, [1, 2])
    assert last is not None and (last.finish, last.n_tokens) == ("length", 3)


def test_finish_flushes_held_text_once() -> None:
    streams = TextStreams(TABLE)
    handle = streams.open(["abc"], [], 10)
    assert push_one(streams, handle, PIECES.index(b"ab")) is None
    assert streams.finish(handle) == "ab"
    assert streams.finish(handle) == ""
    assert streams.text(handle) == "ab"
    with pytest.raises(ValueError, match=r"has finished; close it"):
        streams.push_batch([handle], [0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stop": ["a", ""]}, r"stop\[1\] is empty"),
        ({"stop": ["x" * 4097]}, r"stop\[0\] is 4097 bytes"),
        ({"stop": ["x"] * 257}, "257 stop strings; at most 256"),
        ({"stop": ["\ud83d"]}, "surrogates not allowed"),
        ({"stop_ids": [-1]}, "stop_ids has -1"),
        ({"stop_ids": [10**9]}, "stop_ids has 1000000000"),
        ({"stop_ids": [2**70]}, "does not fit 64 bits"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 11}, r"0 to max_tokens \(10\)"),
    ],
)
def test_open_names_what_it_refuses_and_opens_nothing(
    arguments: dict[str, object], message: str
) -> None:
    streams = TextStreams(TABLE)
    options: dict[str, object] = {"stop": [], "stop_ids": [], "max_tokens": 10}
    with pytest.raises(ValueError, match=message):
        streams.open(**(options | arguments))  # type: ignore[arg-type]
    assert streams.n_open == 0


def test_a_refused_batch_pushes_nothing() -> None:
    streams = TextStreams(TABLE)
    handle = streams.open([], [], 10)
    with pytest.raises(ValueError, match=r"token_ids\[1\] is 99999"):
        streams.push_batch([handle, handle], [0, 99999])
    with pytest.raises(ValueError, match=r"token_ids\[1\] is 99999"):
        streams.push_texts([handle, handle], [0, 99999])
    with pytest.raises(ValueError, match="2 handles and 1 token ids"):
        streams.push_batch([handle, handle], [0])
    (event,) = streams.push_batch([handle], [0])
    assert event.n_tokens == 1
