"""W1 to W5 (`workloads.py`) on one GPU, the engine in this process, and where a decode step's time
goes.

    python -m benchmarks.serving.bench_gpu_engine --model qwen --out benchmarks/results

Random bfloat16 weights made on the card; text is made for every token, HTTP is not part of it.
Figures that repeat are the median of three runs with an empty prefix cache each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.serving import workloads
from benchmarks.serving.gpu_engine import Client, make_engine
from benchmarks.serving.step_profile import breakdown, trace
from benchmarks.serving.timeline import itl_ms, output_rate, percentile, ttft_ms

SETTINGS = {  # (requests at once, W5 rates with their numbers of requests)
    "qwen": (256, ((16.0, 192), (48.0, 400), (None, 256))),
    "llama": (128, ((8.0, 96), (20.0, 240), (None, 256))),
}
# For the traces of decode steps: requests, output tokens of each, seconds of about 250 steps.
PROFILES = {
    "qwen": ((1, 2400, 0.4), (256, 700, 1.4)),
    "llama": ((1, 700, 1.2), (128, 600, 1.9)),
}
REPEATS = 3


class Report:
    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        self._began_at = time.perf_counter()

    def add(self, work: str, **values: object) -> None:
        rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}
        self.rows.append({"work": work, **rounded})
        print(
            f"[{time.perf_counter() - self._began_at:6.1f} s]",
            work,
            json.dumps(rounded),
            flush=True,
        )


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def w1(client: Client, report: Report, n: int, repeats: int, top_k: int = 0) -> None:
    work = workloads.at_once(n)
    rates = []
    for i in range(repeats):
        rates.append(output_rate(client.run(work, namespace=f"w1-{top_k}-{i}", top_k=top_k)))
    report.add("W1/W2 output tokens/s", n=n, top_k=top_k, runs=len(rates), **spread(rates))


def w3(client: Client, report: Report) -> None:
    token_ms, first_ms = [], []
    for i in range(REPEATS + 1):  # the first one captures its graph
        (timeline,) = client.run([workloads.single()], namespace=f"w3-{i}")
        times = timeline.times
        if i:
            token_ms.append(1e3 * (times[-1] - times[0]) / (timeline.n_tokens - 1))
            first_ms += ttft_ms([timeline])
    report.add("W3 ms a token", **spread(token_ms))
    report.add("W3 TTFT ms", **spread(first_ms))


def w4(client: Client, report: Report) -> None:
    for n_output in (64, 1):
        cold, warm = [], []
        for i in range(REPEATS):
            for seconds, variant in ((cold, 0), (warm, 1)):
                work = workloads.common_prefix(n_output, variant)
                timelines = client.run(work, namespace=f"w4-{n_output}-{i}")
                seconds.append(max(timeline.times[-1] for timeline in timelines))
        report.add(f"W4 {n_output} out, cold, s", **spread(cold))
        report.add(f"W4 {n_output} out, warm, s", **spread(warm))


def w5(client: Client, report: Report, rates: tuple[tuple[float | None, int], ...]) -> None:
    for rate, n in rates:
        serve(client, report, rate, n, "w5")
    serve(client, report, None, 256, "w5-fresh")


def serve(client: Client, report: Report, rate: float | None, n: int, namespace: str) -> None:
    timelines = client.run(
        workloads.serving(n), workloads.arrival_times(n, rate), namespace, top_k=50
    )
    first, between = ttft_ms(timelines), itl_ms(timelines)
    report.add(
        f"W5 {'all at once' if rate is None else f'{rate:g}/s'}"
        f"{', empty cache' if namespace.endswith('fresh') else ''}",
        n=n,
        output_tokens_s=output_rate(timelines),
        ttft_p50=percentile(first, 50),
        ttft_p99=percentile(first, 99),
        itl_p50=percentile(between, 50),
        itl_p99=percentile(between, 99),
    )


def profile_decode(client: Client, report: Report, n: int, n_output: int, seconds: float) -> None:
    """A trace of steps in which n requests decode and none arrives. n_output: tokens of each, more
    than the trace sees."""
    work = [workloads.Work([7 * i % 1000 + j % 13 for j in range(256)], n_output) for i in range(n)]
    thread = threading.Thread(target=client.run, args=(work,), kwargs={"namespace": f"p{n}"})
    thread.start()
    time.sleep(1.2)  # prompts are done, and the graph is there
    report.add(f"profile of decode, batch {n}", **breakdown(trace(seconds)))
    thread.join()


def profile(client: Client, report: Report, model: str) -> None:
    trace(0.0)  # the first one of a process takes longer than some of the work
    for n, n_output, seconds in PROFILES[model]:
        profile_decode(client, report, n, n_output, seconds)


def profile_mixed(client: Client, report: Report, n: int) -> None:
    """A trace of W1's beginning: steps with chunks of prompts among requests that decode."""
    work = workloads.at_once(n)
    thread = threading.Thread(target=client.run, args=(work,), kwargs={"namespace": "mixed"})
    report.add("profile of steps with prompts", **breakdown(trace(0.4, thread.start)))
    thread.join()


def machine(commit: str) -> dict[str, object]:
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "commit": commit,
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(workloads.MODELS), required=True)
    parser.add_argument("--parts", default="w1,w3,w4,w5,mixed,profile")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs of W1 and W2")
    parser.add_argument("--prefill-chunk", type=int, help="left out: what the engine chooses")
    parser.add_argument("--max-batch-size", type=int, default=256)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    n, rates = SETTINGS[args.model]
    began_at = time.perf_counter()
    report = Report()
    engine = make_engine(
        workloads.MODELS[args.model],
        max_seq_len=8192,
        max_batch_size=args.max_batch_size,
        prefill_chunk=args.prefill_chunk or "auto",
    )
    client = Client(engine)
    client.run([workloads.single(n_output=1)])
    report.add("start to first token, s", seconds=time.perf_counter() - began_at)
    parts: dict[str, Callable[[], None]] = {
        "w3": lambda: w3(client, report),
        "w1": lambda: w1(client, report, n, args.repeats),
        "w4": lambda: w4(client, report),
        "w5": lambda: w5(client, report, rates),
        "mixed": lambda: profile_mixed(client, report, n),
        "profile": lambda: profile(client, report, args.model),
    }
    for name, part in parts.items():
        if name in args.parts.split(","):
            part()
    report.add(
        "memory, GiB", **{k: v / 2**30 for k, v in engine.get_stats()["memory_bytes"].items()}
    )  # type: ignore[attr-defined]
    report.add("device memory in use, GiB", used=_used_gib())
    engine.shutdown()
    if args.out is not None:
        result = {
            "machine": machine(args.commit),
            "settings": {
                "model": args.model,
                "prefill_chunk": str(engine.prefill_chunk),
                "max_batch_size": args.max_batch_size,
            },
            "rows": report.rows,
        }
        path = args.out / f"gpu_engine_{args.model}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")


def _used_gib() -> float:
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


if __name__ == "__main__":
    main()
