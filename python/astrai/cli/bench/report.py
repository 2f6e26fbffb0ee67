"""The figures of a run: rates and percentiles, as a dictionary and as a table."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from astrai.cli.bench.client import Answer
from astrai.engine.histogram import percentiles

__all__ = ["figures", "table"]

_TIMES = {
    "ttft_ms": "time to first token, ms",
    "itl_ms": "between events, ms",
    "tpot_ms": "a token after the first, ms",
    "e2e_ms": "whole answer, ms",
}


def figures(answers: list[Answer]) -> dict[str, Any]:
    """Figures of the answers that came whole; errors are counted by their text.

    Rates are over the time from the first request sent to the last event received.
    """
    whole = [answer for answer in answers if answer.error is None]
    began_s = min(answer.sent_s for answer in answers)
    ended_s = max((answer.event_s[-1] for answer in whole), default=began_s)
    seconds = ended_s - began_s
    n_output = sum(answer.n_output for answer in whole)
    n_prompt = sum(answer.n_prompt for answer in whole)
    gaps = [b - a for answer in whole for a, b in pairwise(answer.event_s)]
    rests = [
        (answer.event_s[-1] - answer.event_s[0]) / (answer.n_output - 1)
        for answer in whole
        if answer.n_output > 1
    ]
    return {
        "requests": len(answers),
        "failed": len(answers) - len(whole),
        "errors": dict(Counter(answer.error for answer in answers if answer.error is not None)),
        "seconds": round(seconds, 3),
        "prompt_tokens": n_prompt,
        "cached_tokens": sum(answer.n_cached for answer in whole),
        "output_tokens": n_output,
        "output_tokens_per_s": round(n_output / seconds, 1) if seconds else None,
        "total_tokens_per_s": round((n_prompt + n_output) / seconds, 1) if seconds else None,
        "requests_per_s": round(len(whole) / seconds, 3) if seconds else None,
        "ttft_ms": _milliseconds([answer.ttft_s for answer in whole]),
        "itl_ms": _milliseconds(gaps),
        "tpot_ms": _milliseconds(rests),
        "e2e_ms": _milliseconds([answer.e2e_s for answer in whole]),
    }


def table(result: dict[str, Any]) -> str:
    """The figures for a terminal."""
    lines = [
        f"requests      {result['requests']}, of which {result['failed']} failed",
        f"duration      {result['seconds']} s",
        f"tokens        {result['prompt_tokens']} in ({result['cached_tokens']} cached), "
        f"{result['output_tokens']} out",
        f"output        {result['output_tokens_per_s']} tokens/s",
        f"in and out    {result['total_tokens_per_s']} tokens/s, "
        f"{result['requests_per_s']} requests/s",
        "",
        f"{'':<30}{'p50':>10}{'p90':>10}{'p99':>10}",
    ]
    for name, title in _TIMES.items():
        values = "".join(f"{'-' if v is None else f'{v:.2f}':>10}" for v in result[name].values())
        lines.append(f"{title:<30}{values}")
    lines += [f"error ({count} times): {text}" for text, count in result["errors"].items()]
    return "\n".join(lines)


def _milliseconds(seconds: list[float]) -> dict[str, float | None]:
    found = percentiles(seconds)
    return {name: None if s is None else round(s * 1000, 3) for name, s in found.items()}
