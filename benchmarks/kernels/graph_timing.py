"""Times GPU operations by CUDA-graph replay over rotating buffers, and the card itself.

A graph holds one call per buffer set, repeated until it holds MIN_CALLS; sets together exceed four
times the L2 cache where MAX_SETS allows it, so that no call finds its operands there. A time is one
replay divided by its calls: launches inside a graph, overlapped where the kernels allow it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from astrai import _C

L2_BYTES = 50 * 2**20
MIN_CALLS, MAX_SETS, WARM_UPS, REPEATS = 32, 64, 3, 25


def arguments(doc: str | None) -> argparse.Namespace:
    """Of a program whose docstring it is: out, the folder for its .json and .md, and commit."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--out", type=Path, required=True, help="folder for the .json and the .md")
    parser.add_argument("--commit", required=True)
    return parser.parse_args()


class Time(NamedTuple):
    """Microseconds of one call."""

    median: float
    p10: float
    p90: float


def n_sets(bytes_a_set: int) -> int:
    """Buffer sets that exceed four times L2, at least 2 and at most MAX_SETS."""
    return max(2, min(MAX_SETS, 4 * L2_BYTES // max(bytes_a_set, 1) + 1))


def replay_us(
    calls: Sequence[Callable[[], object]], repeats: int = REPEATS, min_calls: int = MIN_CALLS
) -> Time:
    """calls: the operation on each buffer set. Fewer repeats suit what is only compared with, and
    fewer calls in a graph those that take milliseconds."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    n_rounds = -(-min_calls // len(calls))
    with torch.cuda.graph(graph):
        for _ in range(n_rounds):
            for call in calls:
                call()
    for _ in range(WARM_UPS):
        graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / (n_rounds * len(calls)))
    deciles = statistics.quantiles(times, n=10)
    return Time(statistics.median(times), deciles[0], deciles[-1])


def ceilings() -> dict[str, int]:
    """GB/s of a kernel that reads and writes 2 GiB (both counted) and of one that sums 2 GiB."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    n_bytes = source.numel() * source.element_size()
    copy = replay_us([lambda: torch.neg(source, out=target)] * 2).median
    read = replay_us([lambda: source.sum()] * 2).median
    return {
        "copy GB/s": round(2 * n_bytes / copy / 1000),
        "read GB/s": round(n_bytes / read / 1000),
    }


def machine(commit: str) -> dict[str, object]:
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,clocks.sm,clocks.mem",
        "--format=csv,noheader",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        answer = "unknown, unknown, unknown"
    driver, sm_clock, memory_clock = (part.strip() for part in answer.splitlines()[0].split(","))
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver,
        "clocks": f"SM {sm_clock}, memory {memory_clock}",
        "CUDA": torch.version.cuda,
        "torch": torch.__version__,
        "kernels for": ", ".join(_C.cuda_archs()),
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "repeats": REPEATS,
        **ceilings(),
    }


def write_results(
    stem: str,
    title: str,
    text: str,
    head: dict[str, object],
    rows: list[dict[str, object]],
    out: Path,
) -> None:
    """Prints a table and writes stem.md and stem.json into out. rows: all with the same keys."""
    columns = list(rows[0])
    lines = [f"# {title}", "", ", ".join(f"{key} {value}" for key, value in head.items()) + ".", ""]
    lines += [text, "", "| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    page = "\n".join(lines) + "\n"
    print(page)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{stem}.md").write_text(page)
    (out / f"{stem}.json").write_text(json.dumps({"machine": head, "rows": rows}, indent=1) + "\n")
