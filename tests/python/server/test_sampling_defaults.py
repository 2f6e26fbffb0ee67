"""The model's own sampling defaults: where a request gives none, in every protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FakeEngine
from live_server import Live

DEFAULTS = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
STANDARD = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
}


@pytest.fixture(scope="module")
def with_defaults(start_server: Callable[..., Live]) -> Live:
    return start_server(FakeEngine(sampling_defaults=DEFAULTS))


def sampled_with(live: Live, path: str, **fields: Any) -> dict[str, Any]:
    engine = live.engine
    assert engine is not None
    engine.client.requests.clear()
    answer = live.http.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    (request,) = engine.client.requests
    return {name: getattr(request.params, name) for name in DEFAULTS}


@pytest.mark.parametrize("path", BODIES)
def test_the_models_defaults_hold_where_a_request_gives_none(
    with_defaults: Live, path: str
) -> None:
    assert sampled_with(with_defaults, path) == DEFAULTS
    assert sampled_with(with_defaults, path, temperature=None, top_k=None) == DEFAULTS


@pytest.mark.parametrize("path", BODIES)
def test_what_a_request_gives_wins_field_by_field(with_defaults: Live, path: str) -> None:
    given = {"temperature": 1.0, "top_k": 50}  # also where it is the standard value
    assert sampled_with(with_defaults, path, **given) == {**DEFAULTS, **given}
    assert sampled_with(with_defaults, path, **STANDARD) == STANDARD


@pytest.mark.parametrize("path", BODIES)
def test_without_them_the_standard_values_hold(live: Live, path: str) -> None:
    assert sampled_with(live, path) == STANDARD


def test_a_response_tells_what_it_was_sampled_with(with_defaults: Live) -> None:
    answer = with_defaults.http.post("/v1/responses", json=BODIES["/v1/responses"]).json()
    assert (answer["temperature"], answer["top_p"]) == (0.6, 0.9)
