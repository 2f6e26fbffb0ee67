"""/openapi.json against the server: real answers fit it, and requests made from it meet no 5xx."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import schemathesis
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from live_server import Live

from astrai.server.field_texts import FIELD_TEXTS

N_OPERATIONS = 19
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
ASKED: list[tuple[str, str, Any]] = [
    ("post", "/v1/chat/completions", HELLO),
    ("post", "/v1/chat/completions", {**HELLO, "logprobs": True}),
    ("post", "/v1/chat/completions", {}),
    ("post", "/v1/chat/completions", {**HELLO, "n": 9999}),
    ("post", "/v1/completions", {"prompt": "Hello", "max_tokens": 2}),
    ("post", "/v1/completions", {"prompt": "Hello", "suffix": "x"}),
    ("post", "/v1/responses", {"input": "Hello", "max_output_tokens": 2}),
    ("post", "/v1/responses", {"input": []}),
    ("post", "/v1/responses/input_tokens", {"input": "Hello"}),
    ("post", "/v1/messages", HELLO),
    ("post", "/v1/messages", {}),
    ("post", "/v1/messages/count_tokens", {"messages": HELLO["messages"]}),
    ("get", "/v1/models", None),
    ("get", "/v1/models/{model_id}", None),
    ("get", "/v1/responses/{response_id}", None),
    ("get", "/v1/responses/{response_id}/input_items", None),
    ("post", "/tokenize", {"prompt": "Hello"}),
    ("post", "/detokenize", {"tokens": [7, 8]}),
    ("get", "/health", None),
    ("get", "/ready", None),
    ("get", "/stats", None),
    ("get", "/debug/inspector", None),
]


@pytest.mark.parametrize("method, path, body", ASKED)
def test_real_answers_fit_the_page(live: Live, method: str, path: str, body: Any) -> None:
    page = live.http.get("/openapi.json").json()
    made = live.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1}).json()["id"]
    filled = path.replace("{model_id}", "astrai").replace("{response_id}", made)
    response = live.http.request(method, filled, json=body)
    declared = page["paths"][path][method]["responses"][str(response.status_code)]
    schema = declared["content"]["application/json"]["schema"]
    jsonschema.validate(response.json(), {**schema, "components": page["components"]})
    jsonschema.Draft202012Validator.check_schema(page["components"]["schemas"]["ChatCompletion"])


def test_every_operation_declares_its_answer_and_its_errors(live: Live) -> None:
    page = live.http.get("/openapi.json").json()
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            is_served = not path.endswith("/cancel")  # there is nothing that could be cancelled
            assert ("200" in answers) == is_served and "401" in answers, (method, path)
            assert operation["description"], (method, path)
            if method == "post" and is_served:
                assert {"413", "415", "422"} <= answers.keys() and "requestBody" in operation
    assert not [n for n in page["components"]["schemas"] if n.startswith("HTTPValidation")]


def test_every_field_has_a_meaning_and_every_meaning_a_field(live: Live) -> None:
    schemas = live.http.get("/openapi.json").json()["components"]["schemas"]
    told = {
        f"{name}.{field}": declared["description"]
        for name, schema in schemas.items()
        for field, declared in schema.get("properties", {}).items()
    }
    bare = {place.partition(".")[2] for place in told if place not in FIELD_TEXTS}
    assert len(told) > 250
    assert all(text.endswith(".") and len(text) < 120 for text in told.values())
    assert FIELD_TEXTS.keys() == bare | (told.keys() & FIELD_TEXTS.keys())


@pytest.fixture(scope="module")
def crowded(start_server: Any) -> Live:
    live = start_server(FakeEngine())
    live.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1})
    return live  # type: ignore[no-any-return]


@pytest.mark.parametrize("operation", range(N_OPERATIONS))
def test_requests_made_from_the_page_meet_no_5xx(crowded: Live, operation: int) -> None:
    page = schemathesis.openapi.from_url(crowded.url + "/openapi.json")
    operations = [found.ok() for found in page.get_all_operations()]
    assert len(operations) == N_OPERATIONS
    known = operations[operation].definition.raw["responses"]

    @settings(
        max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operations[operation].as_strategy())
    def check(case: schemathesis.Case) -> None:
        response = case.call(timeout=60)
        assert response.status_code < 500, response.text
        assert str(response.status_code) in known or response.status_code in (400, 404, 405)

    check()
    assert crowded.http.get("/health").json()["status"] == "ok"
