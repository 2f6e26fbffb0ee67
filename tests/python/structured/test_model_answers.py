"""Structured output of the default model: whatever it wants to say, a whole answer validates."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schema_strategies import SCHEMAS

from astrai.engine import GenerationRequest, InferenceEngine
from astrai.models import LoadedModel
from astrai.sampling import SamplingParams
from astrai.structured import Grammar

pytestmark = pytest.mark.model

PROMPT = "<|im_start|>user\nAnswer in JSON: who are you?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def engine(default_model: LoadedModel) -> Iterator[InferenceEngine]:
    with InferenceEngine(
        default_model.model,
        default_model.tokenizer,
        max_batch_size=16,
        max_seq_len=512,
        kv_mode="paged",
        end_ids=default_model.end_ids,
    ) as engine:
        yield engine


def answers(
    engine: InferenceEngine, requests: list[tuple[Grammar, SamplingParams]]
) -> list[tuple[str, str]]:
    """(text, finish_reason) of each, computed together."""
    assert engine.tokenizer is not None
    prompt_ids = engine.tokenizer.encode(PROMPT)
    texts = [""] * len(requests)
    reasons = [""] * len(requests)
    done = threading.Semaphore(0)

    def sink_of(idx: int) -> Any:
        def sink(events: Any) -> None:
            for event in events:
                texts[idx] += event.text
                assert event.error is None, event.error
                if event.finish_reason is not None:
                    reasons[idx] = event.finish_reason
                    done.release()

        return sink

    for idx, (grammar, params) in enumerate(requests):
        request = GenerationRequest(prompt_ids, params, grammar=grammar)
        engine.client.submit(request, sink_of(idx))
    for _ in requests:
        assert done.acquire(timeout=300)
    return list(zip(texts, reasons, strict=True))


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(SCHEMAS, min_size=8, max_size=8), st.integers(0, 2**32))
def test_answers_of_the_default_model_validate(
    engine: InferenceEngine, schemas: list[Any], seed: int
) -> None:
    draw = random.Random(seed)
    sampled = [
        SamplingParams(
            temperature=draw.choice([0.0, 0.7, 1.5]), seed=seed + i, max_tokens=40, top_k=0
        )
        for i in range(len(schemas))
    ]
    requests = [(Grammar.json_schema(s), p) for s, p in zip(schemas, sampled, strict=True)]
    for schema, (text, reason) in zip(schemas, answers(engine, requests), strict=True):
        assert reason in ("stop", "length")
        if reason == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_an_object_of_given_properties_is_whole_and_in_order(engine: InferenceEngine) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 120},
            "kind": {"enum": ["cat", "dog"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
    }
    params = [SamplingParams(temperature=t, seed=3, max_tokens=120) for t in (0.0, 1.0, 1.5)]
    for text, reason in answers(engine, [(Grammar.json_schema(schema), p) for p in params]):
        assert reason == "stop"
        found = json.loads(text)
        jsonschema.validate(found, schema)
        assert list(found) == ["name", "age", "kind", "tags"]


def test_whitespace_between_tokens_has_an_end(engine: InferenceEngine) -> None:
    """Every token of whitespace is made as likely as can be, and the answer goes on."""
    assert engine.tokenizer is not None
    blank = [i for i, b in enumerate(engine.tokenizer.token_bytes()) if b and not b.strip()]
    params = SamplingParams(
        temperature=0, max_tokens=400, logit_bias=dict.fromkeys(blank[:4000], 100.0)
    )
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    [(text, reason)] = answers(engine, [(Grammar.json_schema(schema), params)])
    assert reason == "stop"
    assert set(json.loads(text)) == {"a", "b"}
    assert len(text) < 300
