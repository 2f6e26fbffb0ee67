"""What a request costs the server before its first token: 256 streams at once of one token each,
over a model that computes nothing (`no_op_server`).

    PYTHONPATH=python python -m benchmarks.serving.bench_request_cost [--before CHECKOUT] [--write]

CPU time of the server's threads as the kernel counts it; the client is another process. With
--before a checkout with its own _C is measured in turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.results_file import write_results
from benchmarks.serving.bench_stream_cost import Stream, chat, read_stream, running, streamed
from benchmarks.serving.no_op_engine import Conditions

N_REQUESTS = 256
N_ROUNDS = 12  # of each server
N_TURNS = 3
_IDS, _CHAT = "/v1/completions", "/v1/chat/completions"
_WORDS = "the quick brown fox jumps "
CASES = ("576 ids", "chat of 560 tokens", "chat of 20 tokens")


def body(case: str, i: int) -> dict[str, Any]:
    if case == "576 ids":
        rng = random.Random(i)
        return {"prompt": [rng.randrange(10, 49000) for _ in range(576)], **streamed(1)}
    return chat(f"Tell me about {i}. " + _WORDS * (110 if case == "chat of 560 tokens" else 1), 1)


async def burst(port: int, case: str, first: int) -> list[float]:
    """Milliseconds from the beginning to each request's first bytes. first: makes prompts new."""
    path = _IDS if case == "576 ids" else _CHAT
    streams = [Stream() for _ in range(N_REQUESTS)]
    bodies = [body(case, first + i) for i in range(N_REQUESTS)]
    began_s = time.monotonic()
    pairs = zip(bodies, streams, strict=True)
    await asyncio.gather(*(read_stream(port, one, stream, path) for one, stream in pairs))
    return sorted((stream.arrivals_s[0] - began_s) * 1000 for stream in streams)


def measure() -> dict[str, dict[str, list[float]]]:
    """Of the package that is imported: figures of each round, by case."""
    found: dict[str, dict[str, list[float]]] = {}
    with running(Conditions(max_batch_size=N_REQUESTS)) as server:
        for case in CASES:
            asyncio.run(burst(server.port, case, 0))
            rows = found[case] = defaultdict(list)
            for number in range(1, N_ROUNDS + 1):
                loop_before, others_before = server.cpu_s()
                first_ms = asyncio.run(burst(server.port, case, number * N_REQUESTS))
                time.sleep(0.1)  # the last answers' ends
                loop, others = server.cpu_s()
                rows["loop_us"].append((loop - loop_before) / N_REQUESTS * 1e6)
                rows["others_us"].append((others - others_before) / N_REQUESTS * 1e6)
                rows["ttft_p50_ms"].append(first_ms[N_REQUESTS // 2])
                rows["ttft_last_ms"].append(first_ms[-1])
    return found


def measure_checkout(folder: Path) -> dict[str, dict[str, list[float]]]:
    """`measure` of a checkout's package, by the benchmark of this one."""
    here = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{folder / 'python'}{os.pathsep}{here}"}
    command = [sys.executable, "-m", "benchmarks.serving.bench_request_cost", "--one"]
    told = subprocess.run(command, env=env, cwd=here, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, list[float]]] = json.loads(told.stdout)
    return found


def _spread(found: list[float]) -> str:
    low, middle, high = statistics.quantiles(found, n=4)
    return f"{middle:.0f} ({low:.0f}-{high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--write", action="store_true", help="write results/request_cost.*")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure()))
        return
    checkouts = {"this": Path(__file__).parents[2]}
    if args.before is not None:
        checkouts = {"before": args.before, **checkouts}
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for turn in range(N_TURNS):
        for name, folder in checkouts.items():
            for case, figures in measure_checkout(folder).items():
                rows = values.setdefault((case, name), defaultdict(list))
                for figure, found in figures.items():
                    rows[figure] += found
            print(turn, name, flush=True)
    table: list[dict[str, object]] = []
    for case in CASES:
        for name in checkouts:
            shown = {key: _spread(found) for key, found in values[case, name].items()}
            table.append({"case": case, "checkout": name, **shown})
    conditions = (
        f"{N_REQUESTS} streams of one token each at once. Microseconds of CPU time a request, of "
        "the event loop's thread and of all others, and milliseconds to the first bytes of the "
        f"median and of the last request: medians of {N_TURNS * N_ROUNDS} rounds with the "
        f"quartiles, in turns of {N_ROUNDS}. Server and client share {os.cpu_count()} cores."
    )
    if args.write:
        title = "What a request costs before its first token: no model, the real server"
        results = Path(__file__).parents[1] / "results"
        write_results("request_cost", title, conditions, table, results)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
