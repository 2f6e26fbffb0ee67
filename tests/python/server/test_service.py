"""Routes beside generation, keys, headers, a dead engine, no engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_engine import FakeEngine
from live_server import Live

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def test_stats_are_the_engine_s(live: Live) -> None:
    live.post("/v1/messages", HELLO)
    stats = live.wait_idle()
    assert stats["total_tasks"] >= 1 and stats["total_tokens"] >= 2


def test_tokenize_and_detokenize_are_inverse(live: Live) -> None:
    text = "ďábel 🧪 <|im_end|>"
    tokens = live.post("/tokenize", {"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"]) and 258 in tokens["tokens"]
    assert live.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": text}
    assert live.post("/detokenize", {"tokens": [300]}).status_code == 400
    assert live.post("/tokenize", {}).status_code == 422
    empty = {"prompt": text, "messages": []}  # some clients send both
    assert live.post("/tokenize", empty).json() == tokens


def test_tokenize_renders_a_conversation_as_it_is_served(live: Live) -> None:
    tokens = live.post("/tokenize", {"messages": HELLO["messages"]}).json()["tokens"]
    live.post("/v1/chat/completions", HELLO)
    assert live.engine.client.requests[-1].prompt_ids == tokens  # type: ignore[union-attr]


def test_models_list_the_served_name(live: Live) -> None:
    (card,) = live.http.get("/v1/models").json()["data"]
    assert card["id"] == "astrai" and card["object"] == "model"
    assert live.http.get("/v1/models/astrai").json() == card
    assert live.http.get("/v1/models/org/other").json()["error"]["code"] == "model_not_found"


def test_unknown_routes_and_methods_have_both_shapes(live: Live) -> None:
    missing = live.http.get("/v1/nothing")
    assert missing.status_code == 404 and missing.json()["error"]["message"]
    wrong = live.http.get("/v1/messages")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert wrong.json()["type"] == "error" and wrong.json()["detail"]


def test_each_answer_has_its_own_request_id(live: Live) -> None:
    answers = [live.http.get("/health") for _ in range(2)]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2 and answers[0].headers["request-id"] in ids


def test_without_a_model_routes_answer_503_after_validation(unloaded: Live) -> None:
    assert unloaded.http.get("/health").json() == {"status": "ok", "model_loaded": False}
    assert unloaded.http.get("/ready").status_code == 503
    assert unloaded.http.get("/v1/models").json()["data"] == []
    assert unloaded.http.get("/metrics").status_code == 200
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
        response = unloaded.post(path, HELLO)
        assert response.status_code == 503, path
        assert response.json()["detail"] == "Engine not initialized"
        assert unloaded.post(path, {}).status_code == 422
    assert unloaded.http.get("/stats").json()["detail"] == "Engine not initialized"


def test_a_dead_engine_is_unhealthy(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine())
    assert live.http.get("/ready").json() == {"ready": True}
    live.engine.client.is_dead = True  # type: ignore[union-attr]
    assert live.http.get("/health").status_code == 503
    assert live.http.get("/ready").status_code == 503
    assert live.post("/v1/chat/completions", HELLO).status_code == 503


@pytest.fixture(scope="module")
def locked(start_server: Callable[..., Live]) -> Live:
    return start_server(FakeEngine(), api_keys=("k-one", "k-two"), cors_origins=("https://a.b",))


def test_every_route_but_the_probes_asks_for_the_key(locked: Live) -> None:
    schema = locked.http.get("/openapi.json", headers={"x-api-key": "k-one"}).json()
    asked = 0
    for path, methods in schema["paths"].items():
        for method in methods:
            response = locked.http.request(method, path.replace("{model_id}", "x"))
            is_open = path in ("/health", "/ready")
            assert (response.status_code != 401) == is_open, (method, path)
            asked += not is_open
    assert asked >= 8
    assert locked.post("/v1/messages", HELLO).json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"authorization": "Bearer k-one"}, 200),
        ({"authorization": "bearer k-two"}, 200),
        ({"x-api-key": "k-two"}, 200),
        ({"authorization": "Bearer k-three"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "k-one"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_keys_come_in_either_header(locked: Live, headers: dict[str, str], status: int) -> None:
    response = locked.http.post("/v1/chat/completions", json=HELLO, headers=headers)
    assert response.status_code == status


def test_an_empty_key_admits_nobody(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), api_keys=("",))
    for headers in ({}, {"x-api-key": ""}, {"authorization": "Bearer"}):
        assert live.http.get("/stats", headers=headers).status_code == 401


def test_more_generations_than_can_be_open_are_400(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), max_batch_size=2, max_queue=1)
    assert live.post("/v1/chat/completions", {**HELLO, "n": 3}).status_code == 200
    refused = live.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 1})
    assert refused.status_code == 400 and "at most 3" in refused.json()["detail"]


def test_cors_answers_preflights_without_a_key(locked: Live) -> None:
    headers = {"origin": "https://a.b", "access-control-request-method": "POST"}
    response = locked.http.options("/v1/messages", headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://a.b"


def test_metrics_may_be_public(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), api_keys=("k",), metrics_public=True)
    assert live.http.get("/metrics").status_code == 200
    assert live.http.get("/stats").status_code == 401
