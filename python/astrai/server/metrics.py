"""/metrics for Prometheus: what the HTTP side counts, and the engine's counters and latencies.

One registry an application and nothing of the client library's global state. Numbers are kept by
`EngineStats` and `HttpMetrics` and are shaped here when someone asks. Safe on any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from astrai.engine import HistogramSnapshot
from astrai.engine.histogram import SECONDS, Histogram
from astrai.server.engine_link import EngineLink

_MODEL = "model_name"
_OPENMETRICS = "application/openmetrics-text"

# (name, what it is, key of the engine's stats)
_GAUGES = (
    ("num_requests_running", "Requests that are being computed.", "active_tasks"),
    ("num_requests_waiting", "Requests that wait for room.", "waiting_queue"),
)
# The client library appends _total to the names of counters.
_COUNTERS = (
    ("requests", "Requests that the engine accepted.", "total_tasks"),
    ("prompt_tokens", "Prompt tokens of accepted requests.", "prompt_tokens"),
    ("generation_tokens", "Generated tokens.", "total_tokens"),
    ("engine_steps", "Forward steps.", "steps"),
    ("num_preemptions", "Running requests set back for lack of KV pages.", "preemptions"),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_query_tokens"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
)
# (name, what it is, key of the engine's stats, label of the mapping's keys)
_LABELLED_COUNTERS = (
    ("request_success", "Ended requests by how they ended.", "finished", "finished_reason"),
    (
        "prefix_cache_lookups",
        "Lookups in the prefix cache by why they ended.",
        "prefix_miss_reasons",
        "reason",
    ),
    (
        "tool_call_faults",
        "Tool calls of a model that were returned as text.",
        "total_tool_call_faults",
        "reason",
    ),
)
# (name, what it is, key of the engine's histograms)
_HISTOGRAMS = (
    ("time_to_first_token_seconds", "From arrival to the first token.", "ttft_s"),
    ("inter_token_latency_seconds", "Between two tokens of a request.", "itl_s"),
    ("request_queue_time_seconds", "From arrival to the first computation.", "queue_s"),
    ("e2e_request_latency_seconds", "From arrival to the end.", "e2e_s"),
    ("step_host_seconds", "Host work of a step, without what is computed meanwhile.", "host_s"),
    ("request_prompt_tokens", "Prompt tokens of ended requests.", "prompt_tokens"),
    ("request_generation_tokens", "Generated tokens of ended requests.", "output_tokens"),
)


class HttpMetrics(Collector):
    """Answers by route and status, and how long until their first byte and their end.

    route is the pattern of a known route or "other": paths from outside must not become labels.
    Written on the event loop.
    """

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, int]] = Counter()
        self._first_byte: dict[str, Histogram] = {}
        self._duration: dict[str, Histogram] = {}

    def observe(self, route: str, status: int, first_byte_s: float | None, total_s: float) -> None:
        self._answers[route, status] += 1
        if first_byte_s is not None:
            self._first_byte.setdefault(route, Histogram(SECONDS)).observe(first_byte_s)
        self._duration.setdefault(route, Histogram(SECONDS)).observe(total_s)

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "astrai_http_requests", "Answers by route and status.", labels=("route", "status")
        )
        for (route, status), count in sorted(self._answers.copy().items()):
            answers.add_metric((route, str(status)), count)
        yield answers
        for name, text, by_route in (
            ("first_byte", "Time to the answer's first byte.", self._first_byte),
            ("duration", "Time to the answer's end.", self._duration),
        ):
            family = HistogramMetricFamily(f"astrai_http_{name}_seconds", text, labels=("route",))
            for route, histogram in sorted(by_route.copy().items()):
                _add_histogram(family, (route,), histogram.snapshot())
            yield family


class EngineCollector(Collector):
    """The engine's numbers, each with the name of the served model as a label."""

    def __init__(self, link: EngineLink, model_name: str) -> None:
        self._link = link
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        stats: Mapping[str, Any] = self._link.stats()
        labels, values = (_MODEL,), (self._model_name,)
        for name, text, key in _GAUGES:
            gauge = GaugeMetricFamily(f"astrai_{name}", text, labels=labels)
            gauge.add_metric(values, stats[key])
            yield gauge
        for name, text, key in _COUNTERS:
            counter = CounterMetricFamily(f"astrai_{name}", text, labels=labels)
            counter.add_metric(values, stats[key])
            yield counter
        for name, text, key, label in _LABELLED_COUNTERS:
            counter = CounterMetricFamily(f"astrai_{name}", text, labels=(_MODEL, label))
            for reason, count in stats[key].items():
                counter.add_metric((self._model_name, reason), count)
            yield counter
        yield from self._collect_pages(stats["kv_pages"])
        memory = GaugeMetricFamily(
            "astrai_memory_bytes", "Bytes that the engine holds.", labels=(_MODEL, "part")
        )
        for part, n_bytes in stats["memory_bytes"].items():
            memory.add_metric((self._model_name, part), n_bytes)
        yield memory
        histograms = self._link.histograms()
        for name, text, key in _HISTOGRAMS:
            family = HistogramMetricFamily(f"astrai_{name}", text, labels=labels)
            _add_histogram(family, values, histograms[key])
            yield family

    def _collect_pages(self, pages: Mapping[str, int]) -> Iterator[Metric]:
        usage = GaugeMetricFamily(
            "astrai_kv_cache_usage_perc",
            "Share of the KV pages that running requests hold; 1 is all.",
            labels=(_MODEL,),
        )
        usage.add_metric((self._model_name,), pages["held"] / max(1, pages["total"]))
        yield usage
        family = GaugeMetricFamily(
            "astrai_kv_cache_pages", "KV pages by state.", labels=(_MODEL, "state")
        )
        for state in ("free", "cached", "held"):
            family.add_metric((self._model_name, state), pages[state])
        yield family


class ServerMetrics:
    """The registry of one application."""

    def __init__(self) -> None:
        self.http = HttpMetrics()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self.http)
        ProcessCollector(registry=self._registry)

    def watch(self, link: EngineLink, model_name: str) -> None:
        """Show an engine's numbers too."""
        self._registry.register(EngineCollector(link, model_name))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The samples and their content type, in the format that the Accept header asks for."""
        # Not the header itself: the library falls over parameters that are no numbers.
        encode, content_type = choose_encoder(_OPENMETRICS if _OPENMETRICS in accept else "")
        return encode(self._registry), content_type


def _add_histogram(
    family: HistogramMetricFamily, labels: tuple[str, ...], snapshot: HistogramSnapshot
) -> None:
    bounds = [*(f"{bound:g}" for bound in snapshot.bounds), "+Inf"]
    cumulative = accumulate(snapshot.counts)
    family.add_metric(labels, list(zip(bounds, cumulative, strict=True)), snapshot.total)
