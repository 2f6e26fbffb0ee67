"""The engine in the server's process beside one in its own (`--engine-process`), on a GPU over
HTTP: start, a rate of requests, and bursts of prompts that the cache does not know.

    python -m benchmarks.serving.bench_engine_places --folder /path/with/room --model qwen
        [--n 288] [--out benchmarks/results]

Folder, server, client and figures are those of `bench_http_engine.py`; one run of each.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.calibration import machine
from benchmarks.serving import workloads
from benchmarks.serving.bench_http_engine import RATES, card, figures, first_token_s, serving
from benchmarks.serving.http_client import send
from benchmarks.serving.random_folder import write_folder

_SEEDS = (101, 102, 103)  # of the bursts
_OPTIONS = ["--max-seq-len=8192", "--max-batch-size=256", "--max-queue=4096"]


def measure(folder: Path, place: str, rate: float, n: int, n_burst: int) -> list[dict[str, Any]]:
    began_at = time.perf_counter()
    with serving(folder, [*_OPTIONS, f"--engine-process={place}"]) as server:
        row = {"engine process": place, "start s": first_token_s(server, began_at, 120)}
        arrivals = workloads.arrival_times(n, rate)
        rows = [
            {
                **row,
                "work": f"{rate:g}/s",
                **figures(send(server.port, workloads.serving(n), arrivals)),
            }
        ]
        for seed in _SEEDS:
            timelines = send(server.port, workloads.serving(n_burst, seed), [0.0] * n_burst)
            rows.append({**row, "work": f"at once, seed {seed}", **figures(timelines)})
    return rows


def table(result: dict[str, Any]) -> str:
    head = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    columns = list(result["rows"][0])
    lines = [
        f"# Two places of the engine on one GPU, over HTTP: {result['model']}",
        "",
        "`benchmarks/serving/bench_engine_places.py`: W5 at a rate, then bursts of W5 that the "
        "cache does not know; TTFT and time between events in ms.",
        "",
        f"{head}.",
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
    ]
    for row in result["rows"]:
        cells = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=RATES, required=True)
    parser.add_argument("--n", type=int, default=288, help="requests at the rate")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="left out: that of the checkout")
    args = parser.parse_args()
    write_folder(args.folder, args.model)
    *_, (rate, _), (_, n_burst) = RATES[args.model]
    assert rate is not None
    head = machine() if args.commit is None else {**machine(), "commit": args.commit}
    result: dict[str, Any] = {"machine": {**head, **card()}, "model": args.model, "rows": []}
    for place in ("off", "on"):
        result["rows"] += measure(args.folder, place, rate, args.n, n_burst)
    print(table(result))
    if args.out is not None:
        (args.out / "engine_process_gpu.json").write_text(json.dumps(result, indent=1) + "\n")
        (args.out / "engine_process_gpu.md").write_text(table(result))


if __name__ == "__main__":
    main()
