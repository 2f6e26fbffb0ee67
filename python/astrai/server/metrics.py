"""/metrics in the Prometheus text format: what the HTTP side counts, and the engine's stats.

https://prometheus.io/docs/instrumenting/exposition_formats/
Used on the event loop only.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    """Cumulative buckets of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        bucket = next((i for i, top in enumerate(_BUCKETS_S) if seconds <= top), len(_BUCKETS_S))
        self._counts[bucket] += 1
        self._sum += seconds

    def lines(self, name: str, label: str) -> list[str]:
        rows, total = [], 0
        for top, count in zip((*_BUCKETS_S, math.inf), self._counts, strict=True):
            total += count
            bound = "+Inf" if math.isinf(top) else f"{top:g}"
            rows.append(f'{name}_bucket{{{label},le="{bound}"}} {total}')
        rows.append(f"{name}_sum{{{label}}} {self._sum:.6f}")
        rows.append(f"{name}_count{{{label}}} {total}")
        return rows


class HttpMetrics:
    """Requests by route and status, and how long until their first byte and their end.

    route is the pattern of a known route or "other": paths from outside must not become labels.
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._first_byte: dict[str, Histogram] = {}
        self._duration: dict[str, Histogram] = {}

    def observe(self, route: str, status: int, first_byte_s: float | None, total_s: float) -> None:
        self._requests[route, status] += 1
        if first_byte_s is not None:
            self._first_byte.setdefault(route, Histogram()).observe(first_byte_s)
        self._duration.setdefault(route, Histogram()).observe(total_s)

    def render(self, engine_stats: dict[str, Any]) -> str:
        lines = ["# HELP astrai_http_requests_total Answers by route and status."]
        lines.append("# TYPE astrai_http_requests_total counter")
        for (route, status), count in sorted(self._requests.items()):
            label = f'route="{route}",status="{status}"'
            lines.append(f"astrai_http_requests_total{{{label}}} {count}")
        for name, text, histograms in (
            (
                "astrai_http_first_byte_seconds",
                "Time to the answer's first byte.",
                self._first_byte,
            ),
            ("astrai_http_duration_seconds", "Time to the answer's end.", self._duration),
        ):
            lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} histogram")
            for route, histogram in sorted(histograms.items()):
                lines.extend(histogram.lines(name, f'route="{route}"'))
        for name, value in _flatten(engine_stats, "astrai"):
            is_total = name.startswith("astrai_total_")
            lines.append(f"# TYPE {name} {'counter' if is_total else 'gauge'}")
            lines.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
        return "\n".join(lines) + "\n"


def _flatten(stats: dict[str, Any], prefix: str) -> list[tuple[str, int | float]]:
    """The numbers of nested stats under joined names; lists and texts are left out."""
    rows: list[tuple[str, int | float]] = []
    for key, value in stats.items():
        name = f"{prefix}_{key}"
        if not name.replace("_", "").isalnum() or not name.isascii():
            continue
        if isinstance(value, dict):
            rows.extend(_flatten(value, name))
        elif isinstance(value, bool):
            rows.append((name, int(value)))
        elif isinstance(value, (int, float)) and math.isfinite(value):
            rows.append((name, value))
    return rows
