"""Requests with a grammar in a running engine, over the toy model: every answer that was not cut
belongs to its grammar, alone, in a batch, after preemption, with every way to end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from toy_model import END_ID, Collector, toy_engine

from astrai.engine import GenerationRequest, InferenceEngine, RequestError, TokenEvent
from astrai.sampling import SamplingParams
from astrai.structured import Grammar

PATTERN = "[a-f]{3}(xyz|[k-m]+)0"
LARK = """
start: "ab" word "1"
word: "x" | "yz" word | "q" word "p"
"""
GBNF = 'root ::= "ab" [xyz]{1,3} "1"'


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with toy_engine(kv_mode="paged", page_size=4, max_batch_size=8) as engine:
        yield engine


def collect_together(
    engine: InferenceEngine, requests: list[GenerationRequest]
) -> list[list[TokenEvent]]:
    """All events of each request, submitted together."""
    sink = Collector()
    ids = [engine.client.submit(request, sink) for request in requests]
    sink.wait(len(ids))
    return [[event for event in sink.events if event.request_id == i] for i in ids]


def collect(engine: InferenceEngine, request: GenerationRequest) -> list[TokenEvent]:
    return collect_together(engine, [request])[0]


def told(events: list[TokenEvent]) -> list[tuple[object, ...]]:
    return [(event.text, event.token_ids, event.logprobs) for event in events]


def generate(engine: InferenceEngine, grammar: Grammar, **options: object) -> list[str]:
    options = {"max_tokens": 60} | options
    return [engine.generate("hello", seed=s, grammar=grammar, **options) for s in range(12)]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_every_answer_matches_its_regex(engine: InferenceEngine, temperature: float) -> None:
    texts = generate(engine, Grammar.regex(PATTERN), temperature=temperature, top_k=0)
    assert all(re.fullmatch(PATTERN, text) for text in texts), texts


def test_every_answer_is_one_of_the_choices(engine: InferenceEngine) -> None:
    choices = ["foo", "foobar", "q", "x0y1"]
    texts = generate(engine, Grammar.choice(choices), top_k=0, temperature=2.0)
    assert set(texts) <= set(choices)
    assert len(set(texts)) > 1


def test_lark_and_gbnf_are_followed(engine: InferenceEngine) -> None:
    texts = generate(engine, Grammar.lark(LARK), temperature=1.5)
    whole = [text for text in texts if text.endswith("1")]
    assert len(whole) > 6
    for text in whole:
        assert re.fullmatch("ab[yzq]*xp*1", text)
        assert text.count("q") == text.count("p")
    for text in generate(engine, Grammar.lark(GBNF)):
        assert re.fullmatch("ab[xyz]{1,3}1", text)


def test_a_complete_answer_ends_without_end_ids(engine: InferenceEngine) -> None:
    request = GenerationRequest(
        [1, 2], SamplingParams(ignore_eos=True, min_tokens=20), grammar=Grammar.regex("[ab]{3}")
    )
    events = collect(engine, request)
    assert events[-1].finish_reason == "stop"
    assert events[-1].n_output == 3


def test_an_end_id_is_drawn_only_where_the_answer_is_whole(engine: InferenceEngine) -> None:
    for seed in range(20):
        params = SamplingParams(seed=seed, temperature=2.0, top_k=0, max_tokens=50)
        events = collect(engine, GenerationRequest([3], params, grammar=Grammar.regex("(ab)+")))
        text = "".join(event.text for event in events)
        ids = [i for event in events for i in event.token_ids]
        if events[-1].finish_reason == "stop":
            assert re.fullmatch("(ab)+", text)
            assert ids[-1] == END_ID
        else:
            assert len(ids) == 50
            assert END_ID not in ids


def test_the_limit_gives_length_unless_the_answer_is_whole(engine: InferenceEngine) -> None:
    for limit, reason in ((2, "length"), (3, "stop")):
        request = GenerationRequest(
            [1], SamplingParams(max_tokens=limit), grammar=Grammar.regex("[ab]{3}")
        )
        assert collect(engine, request)[-1].finish_reason == reason


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar.regex("(?=a)b"), "look-ahead"),
        (Grammar.regex("["), "unclosed"),
        (Grammar.regex(""), "empty"),
        (Grammar.regex("()"), "no text but the empty one"),
        (Grammar.regex(r"[^\x00-\U0010ffff]"), "none at all"),
        (Grammar.regex("\ud800"), "surrogate"),
        (Grammar.lark("start: @foo"), "unknown grammar"),
        (Grammar.lark('nothing: "a"'), "start"),
        (Grammar.lark("root ::= ("), "GBNF"),
        (Grammar.choice([]), "at least one string"),
        (Grammar("choice", '["a", 5]'), "non-empty strings"),
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar.json_schema({"type": "strin"}), "type at # must be"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_before_it_runs(
    engine: InferenceEngine, grammar: Grammar, message: str
) -> None:
    before = engine.get_stats()["total_tasks"]
    with pytest.raises(RequestError, match=message) as caught:
        engine.generate("a", grammar=grammar)
    assert caught.value.code == "invalid_grammar"
    assert engine.get_stats()["total_tasks"] == before


def test_a_model_without_tokenizer_refuses_grammars() -> None:
    with toy_engine(tokenizer=None) as engine, pytest.raises(RequestError, match="no tokenizer"):
        engine.generate([1], grammar=Grammar.regex("a"))


def test_neighbours_of_a_grammar_draw_what_they_draw_alone(engine: InferenceEngine) -> None:
    def requests(grammar: Grammar | None) -> list[GenerationRequest]:
        params = SamplingParams(seed=7, max_tokens=30, logprobs=3, top_k=0, ignore_eos=True)
        plain = GenerationRequest([5, 6], params)
        return [plain, GenerationRequest([7], params, grammar=grammar), plain]

    alone = [collect(engine, one) for one in requests(None)]
    together = collect_together(engine, requests(Grammar.regex("[a-z]+")))
    for idx in (0, 2):
        assert told(together[idx]) == told(alone[idx])
    assert told(together[1]) != told(alone[1])


def test_preemption_and_recompute_keep_the_place_in_the_grammar() -> None:
    pattern = "([a-d]{5}x){8}"
    requests = [
        GenerationRequest([i], SamplingParams(seed=i, top_k=0), grammar=Grammar.regex(pattern))
        for i in range(4)
    ]
    with toy_engine(kv_mode="paged", page_size=4, kv_tokens=1024) as roomy:
        expected = collect_together(roomy, requests)
    with toy_engine(kv_mode="paged", page_size=4, kv_tokens=96) as tight:
        found = collect_together(tight, requests)
        assert tight.get_stats()["preemptions"] > 0
    for one, other in zip(found, expected, strict=True):
        assert told(one) == told(other)
        assert re.fullmatch(pattern, "".join(event.text for event in one))


def test_stop_strings_and_cancellation_end_an_answer_early(engine: InferenceEngine) -> None:
    grammar = Grammar.regex("abc[x-z]{200}")
    request = GenerationRequest([1], SamplingParams(stop=("bc",)), grammar=grammar)
    last = collect(engine, request)[-1]
    assert (last.finish_reason, last.stop_string) == ("stop", "bc")
    with closing(engine.generate("a", stream=True, grammar=grammar)) as stream:
        assert next(stream) == "a"
    assert engine.generate("a", grammar=Grammar.regex("yes")) == "yes"


def test_a_dead_end_fails_its_request_alone(engine: InferenceEngine) -> None:
    # The only token that the grammar allows is one that min_tokens forbids as a stop id.
    params = SamplingParams(min_tokens=9, max_tokens=20, stop_token_ids=(1,), seed=1)
    grammar = Grammar.regex("ab[a-z]*")
    plain = GenerationRequest([4], SamplingParams(seed=1, max_tokens=9, ignore_eos=True))
    failed, fine = collect_together(
        engine, [GenerationRequest([4], params, grammar=grammar), plain]
    )
    assert failed[-1].finish_reason == "error"
    assert "grammar" in (failed[-1].error or "")
    assert fine[-1].finish_reason == "length"
