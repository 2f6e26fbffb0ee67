"""The table of `bench_http_engine`'s results beside other engines on the same card.

    python -m benchmarks.serving.http_engine_table benchmarks/results

The others' figures: see `gpu_engine_table`. Text under "## What holds it" is written by hand, kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.serving.gpu_engine_table import NOTES, ROWS, value_of

START = (
    "process start to first token, s",
    "seconds",
    # "Server ready": two starts of the first, one of the second.
    {"qwen": ("100, 136", "55"), "llama": ("87, 125", "60")},
)


HOST = (
    "host work a step, 256 streams, ms",
    "best",
    {"qwen": ("-", "-"), "llama": ("-", "-")},
)


def main() -> None:
    folder = Path(sys.argv[1])
    lines = [
        "# A real server on one GPU: its start, and W5 over HTTP",
        "",
        "`astrai-serve` in a process of its own, from a folder of random bfloat16 weights in the "
        "cache of the file system; the client is another process on the same machine "
        "(`benchmarks/serving/bench_http_engine.py`). W5 rows: TTFT p50/p99, time between events "
        "p50/p99, in ms, or output tokens a second of 256 requests. One run of each. The slower "
        "rate's requests were sent at once before, so that the cache held what the others' did. "
        "Host work: what a step takes of the engine's thread besides waiting, HTTP beside it; best "
        "of five rounds.",
        "",
    ]
    for path in sorted(folder.glob("http_engine_*.json")):
        lines += _table(json.loads(path.read_text()))
    target = folder / "http_engine.md"
    _, mark, notes = target.read_text().partition(NOTES) if target.exists() else ("", "", "")
    target.write_text("\n".join(lines) + mark + notes)


def _table(result: dict[str, Any]) -> list[str]:
    model, rows = result["model"], {row["work"]: row for row in result["rows"]}
    head = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    lines = [f"## {model}", f"{head}.", ""]
    commit = result["machine"]["commit"]
    lines += [
        "| work | AstrAI | at commit | vLLM 0.26.0 | SGLang 0.5.17 |",
        "|---|---|---|---|---|",
    ]
    for work, key, others in (START, HOST, *ROWS):
        if work in rows and model in others:
            row = rows[work]
            cells = [work, value_of(row, key), row.get("commit", commit), *others[model]]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
