"""A real `astrai-serve` from files on one GPU: process start to first token, and W5
(`workloads.py`) over HTTP.

    python -m benchmarks.serving.bench_http_engine --folder /path/with/room --model qwen|llama
        [--parts fresh,rates,host] [--rates 48,inf] [--out benchmarks/results]

The folder holds random bfloat16 weights (written on first use) and a tokenizer of one word an id;
files lie in the page cache. "start" is from the start of the process to the end of an answer of one
token. The requests of a rate that --rates leaves out are sent at once beforehand, so that the cache
holds the same. "empty cache" sends the requests of "all at once" to a server of its own, which has
served nothing before; it also reads the libraries' files before the start that counts. "host" is
what a step takes of the engine's thread besides waiting, while 256 requests stream: the best of
five rounds, since other work on the machine stretches them. The client is one process on the same
machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.calibration import calibrate, machine
from benchmarks.serving import workloads
from benchmarks.serving.http_client import send
from benchmarks.serving.random_folder import write_folder
from benchmarks.serving.timeline import Timeline, itl_ms, output_rate, percentile, ttft_ms

RATES: dict[str, tuple[tuple[float | None, int], ...]] = {
    "qwen": ((16.0, 192), (48.0, 400), (None, 256)),
    "llama": ((8.0, 96), (20.0, 240), (None, 256)),
    "tiny": ((8.0, 8), (None, 16)),
}


class Report:
    """Rows of one model; kept in its file after each, so that a limit of time leaves them."""

    def __init__(self, model: str, out: Path | None, commit: str | None) -> None:
        head = machine() if commit is None else {**machine(), "commit": commit}
        self._result: dict[str, Any] = {
            "machine": {**head, **card(), **calibrate()},
            "model": model,
            "rows": [],
        }
        self._path = None if out is None else out / f"http_engine_{model}.json"

    def add(self, work: str, **values: float) -> None:
        row = {"work": work, **{key: round(value, 2) for key, value in values.items()}}
        self._result["rows"].append(row)
        print(json.dumps(row), flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps(self._result, indent=1) + "\n")


def card() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"card": "none"}
    name, driver = found.strip().split(", ")
    return {"card": name, "driver": driver}


class Server(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int


@contextmanager
def serving(folder: Path, options: list[str]) -> Iterator[Server]:
    """A server in a process of its own, which may not answer yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "astrai.cli.serve", "--model", str(folder)]
    process = subprocess.Popen([*command, "--port", str(port), *options])
    try:
        yield Server(process, port)
    finally:
        process.terminate()
        process.wait(30)


def first_token_s(server: Server, began_at: float, limit_s: float) -> float:
    """Seconds from began_at to the end of an answer of one token; asks until the server listens."""
    work = [workloads.single(n_prompt=16, n_output=1)]
    while time.perf_counter() - began_at < limit_s:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.process.returncode}")
        try:
            send(server.port, work, [0.0])
        except OSError:
            time.sleep(0.02)
            continue
        return time.perf_counter() - began_at
    raise RuntimeError(f"no token after {limit_s:g} s")


def measure(port: int, report: Report, name: str, work: list[Any], rate: float | None) -> None:
    timelines = send(port, work, workloads.arrival_times(len(work), rate))
    report.add(name, **figures(timelines))


def measure_rates(
    port: int, report: Report, rates: tuple[tuple[float | None, int], ...], wanted: str | None
) -> None:
    for rate, n in rates:
        work = workloads.serving(n)
        if wanted is not None and f"{rate or float('inf'):g}" not in wanted.split(","):
            send(port, work, [0.0] * n)
            continue
        measure(port, report, "W5 all at once" if rate is None else f"W5 {rate:g}/s", work, rate)


def measure_host(port: int, report: Report, n: int = 256, n_rounds: int = 5) -> None:
    rounds_ms = [host_ms(port, n) for _ in range(n_rounds)]
    report.add(f"host work a step, {n} streams, ms", best=min(rounds_ms), worst=max(rounds_ms))


def host_ms(port: int, n: int, n_output: int = 250) -> float:
    """Host work of a step, mean of those between two looks that find all of n requests running."""
    work = [workloads.single(n_prompt=32, n_output=n_output, seed=500 + i) for i in range(n)]
    sender = threading.Thread(target=send, args=(port, work, [0.0] * n))
    sender.start()
    looks = []
    while sender.is_alive():
        time.sleep(0.25)  # each look takes the server's event loop a while
        values = metrics(port)
        if values["astrai_num_requests_running"] == n:
            looks.append([values[f"astrai_step_host_seconds_{key}"] for key in ("sum", "count")])
    sender.join()
    seconds, steps = (last - first for first, last in zip(looks[0], looks[-1], strict=True))
    return 1e3 * seconds / steps


def metrics(port: int) -> dict[str, float]:
    """What /metrics says, without labels."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    values = {}
    for line in lines:
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name.partition("{")[0]] = float(value)
    return values


def figures(timelines: list[Timeline]) -> dict[str, float]:
    first, between = ttft_ms(timelines), itl_ms(timelines)
    return {
        "n": len(timelines),
        "output_tokens_s": output_rate(timelines),
        "ttft_p50": percentile(first, 50),
        "ttft_p99": percentile(first, 99),
        "itl_p50": percentile(between, 50),
        "itl_p99": percentile(between, 99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=RATES, required=True)
    parser.add_argument("--parts", default="fresh,rates,host")
    parser.add_argument("--rates", help="requests a second to report; inf: all at once")
    parser.add_argument("--limit-s", type=float, default=120, help="for a start")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="left out: that of the checkout")
    parser.add_argument("--option", action="append", default=[], help="of the server, --name=value")
    args = parser.parse_args()
    write_folder(args.folder, args.model)
    report = Report(args.model, args.out, args.commit)
    options = ["--max-seq-len=8192", "--max-batch-size=256", "--max-queue=4096", *args.option]
    parts = args.parts.split(",")
    if "fresh" in parts:
        with serving(args.folder, options) as server:
            first_token_s(server, time.perf_counter(), args.limit_s)
            work = workloads.serving(RATES[args.model][-1][1])
            measure(server.port, report, "W5 all at once, empty cache", work, None)
    began_at = time.perf_counter()
    with serving(args.folder, options) as server:
        seconds = first_token_s(server, began_at, args.limit_s)
        report.add("process start to first token, s", seconds=seconds)
        if "rates" in parts:
            measure_rates(server.port, report, RATES[args.model], args.rates)
        if "host" in parts:
            measure_host(server.port, report)


if __name__ == "__main__":
    main()
