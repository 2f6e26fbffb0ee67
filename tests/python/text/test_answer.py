"""`AnswerSplitter`: every family's transcripts, and properties of any text at any cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from answer_transcripts import OSLO, TOOLS, TRANSCRIPTS, Meaning, reading_of, split
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai.text.answer import TOOL_FORMATS, AnswerEvent, AnswerSplitter, CallBegin, TextPiece

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
# Strings that look like what the formats are made of, so that random texts meet every state.
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[THINK]",
    "[/THINK]", "<|python_tag|>", "<function=", "now>", "<parameter=city>", "</parameter>",
    "</function>", '{"name": "now"', ', "arguments": {', "}", "{", "[", "]", '"', "\\", "now(",
    "city='", "'", ")", "\n", " ", ";", "```json", "```", "text", "é", '{"name": "now"}', "[now()]",
    '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>', "<",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
format_names = st.sampled_from([*TOOL_FORMATS, None])
reasoning_names = st.sampled_from(["think", "mistral", None])


def cut(text: str, points: list[int]) -> list[str]:
    edges = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_means_what_its_family_means(name: str) -> None:
    tool_format, reasoning, text, meaning = TRANSCRIPTS[name]
    assert split(reading_of(tool_format, reasoning), text) == meaning


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_means_the_same_at_every_cut(name: str) -> None:
    tool_format, reasoning, text, meaning = TRANSCRIPTS[name]
    reading = reading_of(tool_format, reasoning)
    assert split(reading, *text) == meaning, "one character at a time"
    for at in range(len(text) + 1):
        assert split(reading, text[:at], text[at:]) == meaning, f"cut at {at}"


@settings(max_examples=600, deadline=None)
@given(texts, format_names, reasoning_names, st.lists(st.integers(0, 10**6), max_size=6))
def test_no_text_depends_on_its_cuts(
    text: str, tool_format: str | None, reasoning: str | None, points: list[int]
) -> None:
    reading = reading_of(tool_format, reasoning)
    assert split(reading, *cut(text, points)) == split(reading, text)


@settings(max_examples=600, deadline=None)
@given(texts, format_names, reasoning_names, st.lists(st.integers(0, 10**6), max_size=20))
def test_a_piece_that_passes_is_more_of_what_was_told_last(
    text: str, tool_format: str | None, reasoning: str | None, points: list[int]
) -> None:
    reading = reading_of(tool_format, reasoning)
    fed, spared = AnswerSplitter(reading), AnswerSplitter(reading)
    events: list[AnswerEvent] = []
    for piece in filter(None, cut(text, points)):
        passes = spared.passes(piece)
        told = fed.feed(piece)
        assert not passes or told == [type(events[-1])(piece)]  # type: ignore[call-arg]
        assert passes or spared.feed(piece) == told
        events += told
    assert spared.end() == fed.end()


def test_ordinary_pieces_pass_once_there_is_text() -> None:
    splitter = AnswerSplitter(reading_of("hermes", "think", is_reasoning=True))
    assert not splitter.passes("Hm")
    splitter.feed("Hm")
    assert splitter.passes(", so") and not splitter.passes(" <") and not splitter.passes(", \n")
    splitter.feed("</think>")
    assert not splitter.passes("Well")
    splitter.feed("Well")
    assert splitter.passes(" then [1]") and not splitter.passes("<tool")


@settings(max_examples=400, deadline=None)
@given(texts, format_names)
def test_text_without_a_call_comes_out_as_it_is(text: str, tool_format: str | None) -> None:
    meaning = split(reading_of(tool_format), text)
    if not meaning.calls:
        assert meaning.text == text
    else:
        assert not meaning.reasoning


@settings(max_examples=400, deadline=None)
@given(st.text(), st.dictionaries(st.text(), json_values, max_size=4), st.booleans(), st.booleans())
def test_arguments_keep_their_value_and_their_spelling(
    before: str, arguments: dict[str, Any], ascii_only: bool, is_indented: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only, indent=2 if is_indented else None)
    call = '{"name": "get_weather", "arguments": ' + written + "}"
    forms = {
        "hermes": f"<tool_call>\n{call}\n</tool_call>",
        "llama3_json": f"<|python_tag|>{call}",
        "mistral": f"[TOOL_CALLS]get_weather[ARGS]{written}",
        "json": call,
    }
    for name, text in forms.items():
        splitter = AnswerSplitter(reading_of(name))
        events = [event for letter in text for event in splitter.feed(letter)] + splitter.end()
        assert events[0] == CallBegin("get_weather")
        spelled = "".join(event.text for event in events[1:-1])  # type: ignore[union-attr]
        assert spelled == written and json.loads(spelled) == arguments
    if "<" not in before:
        meaning = split(reading_of("hermes"), before + forms["hermes"])
        assert meaning.calls == [("get_weather", arguments)] or before.lstrip()[:1] in ("{", "[")


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_pythonic_arguments_keep_their_value(value: dict[str, Any]) -> None:
    meaning = split(reading_of("pythonic"), f'[get_weather(where={value!r}, city="Oslo")]')
    assert meaning.calls == [("get_weather", {"where": value, "city": "Oslo"})]


@settings(max_examples=300, deadline=None)
@given(st.text(), st.integers())
def test_tagged_arguments_keep_their_value(text: str, days: int) -> None:
    answer = (
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{text}\n</parameter>\n"
        f"<parameter=days>\n{days}\n</parameter>\n</function>\n</tool_call>"
    )
    meaning = split(reading_of("qwen3_coder"), *answer)
    assert meaning.calls == [("get_weather", {"city": text, "days": days})]


def test_a_prompt_that_opened_the_reasoning_needs_no_tag() -> None:
    reading = reading_of("hermes", "think", is_reasoning=True)
    text = '\nHm. <tool_call>\n</think>\n\nSo: <tool_call>{"name": "now"}</tool_call>'
    for at in range(len(text)):
        meaning = split(reading, text[:at], text[at:])
        assert meaning == Meaning("So:", "Hm. <tool_call>", [("now", {})])


def test_a_second_call_is_dropped_where_one_is_wanted() -> None:
    reading = reading_of("hermes", first_call_only=True)
    text = TRANSCRIPTS["hermes after text, two calls"][2]
    assert split(reading, text) == Meaning("Let me look.", calls=[OSLO])
    in_a_list = TRANSCRIPTS["hermes list in one tag"][2]
    assert split(reading, in_a_list) == Meaning(calls=[("now", {})])


def test_without_tools_nothing_is_a_call() -> None:
    text = TRANSCRIPTS["hermes"][2]
    reading = reading_of("hermes")
    splitter = AnswerSplitter(type(reading)(tool_format=reading.tool_format))
    assert splitter.feed(text) + splitter.end() == [TextPiece(text)]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_text_is_held_no_longer_than_it_may_be_a_call(tool_format: str) -> None:
    splitter = AnswerSplitter(reading_of(tool_format, "think"))
    assert splitter.feed("Hello") == [TextPiece("Hello")]
    assert splitter.feed(" <") in ([], [TextPiece(" <")])
    told = "".join(event.text for event in splitter.feed("b> x"))  # type: ignore[union-attr]
    assert told.endswith("b> x")


def test_the_transcripts_name_known_tools_only_where_they_call() -> None:
    for _, _, _, meaning in TRANSCRIPTS.values():
        assert {name for name, _ in meaning.calls} <= TOOLS.keys()
