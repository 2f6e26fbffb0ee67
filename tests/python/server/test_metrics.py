"""/metrics as Prometheus reads it, by the client library's own parsers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_engine import FakeEngine
from live_server import Live
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}

# What dashboards for inference servers plot.
EXPECTED = {
    "astrai_num_requests_running": "gauge",
    "astrai_num_requests_waiting": "gauge",
    "astrai_kv_cache_usage_perc": "gauge",
    "astrai_kv_cache_pages": "gauge",
    "astrai_prefix_cache_queries": "counter",
    "astrai_prefix_cache_hits": "counter",
    "astrai_prefix_cache_lookups": "counter",
    "astrai_num_preemptions": "counter",
    "astrai_prompt_tokens": "counter",
    "astrai_generation_tokens": "counter",
    "astrai_request_success": "counter",
    "astrai_time_to_first_token_seconds": "histogram",
    "astrai_inter_token_latency_seconds": "histogram",
    "astrai_request_queue_time_seconds": "histogram",
    "astrai_e2e_request_latency_seconds": "histogram",
    "astrai_request_prompt_tokens": "histogram",
    "astrai_request_generation_tokens": "histogram",
    "astrai_http_requests": "counter",
    "astrai_http_first_byte_seconds": "histogram",
    "astrai_http_duration_seconds": "histogram",
}


def samples(live: Live) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    response = live.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_every_metric_is_there_with_its_type(live: Live) -> None:
    live.post("/v1/chat/completions", HELLO)
    families = text_string_to_metric_families(live.http.get("/metrics").text)
    types = {family.name: family.type for family in families}
    assert {name: types.get(name) for name in EXPECTED} == EXPECTED


def test_answers_are_counted_by_route_pattern(live: Live) -> None:
    def count(route: str, status: int) -> float:
        labels = frozenset({("route", route), ("status", str(status))})
        return samples(live).get(("astrai_http_requests_total", labels), 0.0)

    before = count("/v1/chat/completions", 200)
    live.post("/v1/chat/completions", HELLO)
    assert count("/v1/chat/completions", 200) == before + 1
    live.http.get('/no/such"route')
    live.http.get("/v1/models/astrai")
    assert count("other", 404) >= 1 and count("/v1/models/:model_id", 200) >= 1
    assert not any("such" in dict(labels).get("route", "") for _, labels in samples(live))


def test_the_engine_s_numbers_carry_the_model_s_name(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(), served_model_name='a "b"\\')
    live.post("/v1/chat/completions", HELLO)
    live.wait_idle()
    model = ("model_name", 'a "b"\\')
    found = samples(live)
    assert found["astrai_generation_tokens_total", frozenset({model})] == 2
    assert found["astrai_kv_cache_usage_perc", frozenset({model})] == 0.5
    reason = ("finished_reason", "length")
    assert found["astrai_request_success_total", frozenset({model, reason})] == 1
    name = "astrai_e2e_request_latency_seconds_bucket"
    assert found[name, frozenset({model, ("le", "0.02")})] == 0
    assert found[name, frozenset({model, ("le", "0.05")})] == 1
    assert found[name, frozenset({model, ("le", "+Inf")})] == 1


@pytest.mark.parametrize("accept", ["text/plain;version=x", "*/*;q=a", "application/json"])
def test_an_odd_accept_header_gets_the_plain_format(live: Live, accept: str) -> None:
    response = live.http.get("/metrics", headers={"accept": accept})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")


def test_openmetrics_is_served_on_request(live: Live) -> None:
    live.post("/v1/chat/completions", HELLO)
    accept = "application/openmetrics-text; version=1.0.0"
    response = live.http.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics_families(response.text)}
    assert set(EXPECTED) <= names


def test_without_a_model_the_http_side_is_still_measured(unloaded: Live) -> None:
    unloaded.http.get("/health")
    text = unloaded.http.get("/metrics").text
    assert "astrai_http_requests_total" in text and "astrai_num_requests" not in text
