"""Histograms against a sorted list, and what the engine puts into them."""

from __future__ import annotations

import random

from toy_model import Collector, toy_engine

from astrai.engine import GenerationRequest
from astrai.engine.histogram import SECONDS, TOKENS, Histogram, Latency, percentiles
from astrai.sampling import SamplingParams


def test_buckets_count_the_values_up_to_their_bound() -> None:
    draw = random.Random(5)
    values = [draw.choice(SECONDS) if i % 5 == 0 else draw.expovariate(2) for i in range(2000)]
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    snapshot = histogram.snapshot()
    for i, bound in enumerate(SECONDS):
        assert sum(snapshot.counts[: i + 1]) == sum(value <= bound for value in values), bound
    assert sum(snapshot.counts) == len(values)
    assert abs(snapshot.total - sum(values)) < 1e-6


def test_equal_values_count_as_many_as_they_are() -> None:
    once, many = Histogram(TOKENS), Histogram(TOKENS)
    for _ in range(7):
        once.observe(12)
    many.observe(12, 7)
    assert once.snapshot() == many.snapshot()


def test_percentiles_are_of_the_last_values_by_nearest_rank() -> None:
    latency = Latency()
    assert latency.percentiles() == {"p50": None, "p90": None, "p99": None}
    assert latency.mean(default=3.0) == 3.0
    for i in range(5000):
        latency.observe(float(i))
    last = [float(i) for i in range(5000 - 1024, 5000)]
    assert latency.percentiles() == percentiles(last)
    assert latency.percentiles()["p99"] == last[1013]  # rank ceil(0.99 * 1024) = 1014
    assert latency.mean(default=3.0) == sum(last) / 1024


def test_the_engine_counts_each_request_token_and_lookup_once() -> None:
    sink = Collector()
    with toy_engine(max_batch_size=2, kv_mode="paged", page_size=4, kv_tokens=256) as engine:
        lengths = [(5, 1), (9, 3), (6, 8)]
        ids = []
        for n_prompt, n_output in lengths:
            params = SamplingParams(temperature=0, max_tokens=n_output, ignore_eos=True)
            prompt = [3 + (n_prompt + i) % 7 for i in range(n_prompt)]
            ids.append(engine.client.submit(GenerationRequest(prompt, params), sink))
        sink.wait(len(ids))
        counts = {
            name: (sum(snapshot.counts), snapshot.total)
            for name, snapshot in engine.client.histograms().items()
        }
        stats = engine.get_stats()
    assert counts["prompt_tokens"] == (3, 20) and counts["output_tokens"] == (3, 12)
    for name in ("ttft_s", "queue_s", "e2e_s"):
        assert counts[name][0] == 3, name
    # Every token but the first of each request has one before it.
    assert counts["itl_s"][0] == 12 - 3
    assert counts["queue_s"][1] <= counts["ttft_s"][1] <= counts["e2e_s"][1]
    assert stats["prefix_query_tokens"] == 20
    assert sum(stats["prefix_miss_reasons"].values()) == 3  # type: ignore[attr-defined]
    assert stats["queue_s"]["p50"] is not None  # type: ignore[index]
