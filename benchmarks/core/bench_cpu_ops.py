"""Times `_C.cpu_linear` against torch's F.linear and a streaming read, on SmolLM2-135M's layers.

All weights of a shape's 30 layers are read in turn, so they come from memory as in decoding.
PYTHONPATH=python python -m benchmarks.core.bench_cpu_ops --write   # results/cpu_ops.{json,md}
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.results_file import write_results

from astrai import _C

# name -> (N, K, how many such weights the model has)
LAYERS = {
    "qkv": (960, 576, 30),
    "o": (576, 576, 30),
    "gate_up": (3072, 576, 30),
    "down": (576, 1536, 30),
    "lm_head": (49152, 576, 1),
}
N_ROWS = (1, 8, 16)
READ_BYTES = 256 * 2**20


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(repeats: int, works: list[Callable[[], object]]) -> list[list[float]]:
    """Times of each, taken in turn so that a slow spell of the machine meets all of them; one
    warm-up each."""
    for work in works:
        work()
    rounds = [[seconds(work) for work in works] for _ in range(repeats)]
    return [list(times) for times in zip(*rounds, strict=True)]


def measure(name: str, dtype: torch.dtype, n_rows: int, repeats: int) -> dict[str, object]:
    n, k, count = LAYERS[name]
    weights = [torch.randn(n, k).to(dtype) for _ in range(count)]
    x, out = torch.randn(n_rows, k).to(dtype), torch.empty(n_rows, n, dtype=dtype)
    stream = torch.ones(READ_BYTES // 4)

    def ours() -> None:
        for weight in weights:
            _C.cpu_linear(x, weight, out)

    def theirs() -> None:
        for weight in weights:
            F.linear(x, weight)

    ours_s, torch_s, read_s = interleaved(repeats, [ours, theirs, stream.sum])
    n_bytes = n * k * dtype.itemsize
    ours_us, torch_us = ([t / count * 1e6 for t in times] for times in (ours_s, torch_s))
    gb_per_s = n_bytes / statistics.median(ours_us) / 1e3
    read_gb_per_s = READ_BYTES / statistics.median(read_s) / 1e9
    return {
        "layer": name,
        "dtype": str(dtype).removeprefix("torch."),
        "rows": n_rows,
        "us": round(statistics.median(ours_us), 1),
        "us min-max": f"{min(ours_us):.1f}-{max(ours_us):.1f}",
        "torch us": round(statistics.median(torch_us), 1),
        "torch us min-max": f"{min(torch_us):.1f}-{max(torch_us):.1f}",
        "speedup of medians": round(statistics.median(torch_us) / statistics.median(ours_us), 2),
        "speedup of minima": round(min(torch_us) / min(ours_us), 2),
        "GB/s": round(gb_per_s, 2),
        "streaming read GB/s": round(read_gb_per_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/cpu_ops.*")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _C.cpu_threads(options.threads)
    torch.manual_seed(0)
    load_before = os.getloadavg()[0]
    rows = [
        measure(name, dtype, n_rows, options.repeats)
        for dtype in (torch.float32, torch.bfloat16)
        for n_rows in N_ROWS
        for name in LAYERS
    ]
    write_results(
        "cpu_ops",
        "CPU linear layers of SmolLM2-135M against torch",
        f"{options.threads} threads, instruction set {_C.cpu_isas()[-1]}, torch "
        f"{torch.__version__}. Median of {options.repeats} interleaved repeats after one "
        f"warm-up; a time is one product's. Streaming read: torch's sum of "
        f"{READ_BYTES >> 20} MiB float32 in the same rounds. "
        f"Load average of the last minute: {load_before:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores.",
        rows,
        Path(__file__).parents[1] / "results" if options.write else None,
    )


if __name__ == "__main__":
    main()
