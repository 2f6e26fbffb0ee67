"""Where the time of decode steps goes on the GPU: a trace of the running engine, by kind of kernel.

A device timeline has kernels and copies; what no interval of it covers is idle.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

KINDS = (  # the first that fits
    ("attention", re.compile(r"paged_decode|paged_prefill|merge_kernel")),
    (
        "products",
        re.compile(r"gemm|nvjet|[wy]_linear|cutlass|xmma|splitK|gemv|cublas", re.IGNORECASE),
    ),
    ("sampling", re.compile(r"sampl|scan_kernel|subset|bound|keep_drawn")),
    ("copies", re.compile(r"^Mem(cpy|set)")),
)
SYNCHRONISING = re.compile(r"Synchronize|cudaMemcpy$|cudaMalloc|cudaFree|cudaHostAlloc")


def trace(seconds: float, begin: Callable[[], None] | None = None) -> list[dict[str, object]]:
    """The complete events of a trace of this process over some seconds, from `begin` on."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        if begin is not None:
            begin()
        time.sleep(seconds)
        torch.cuda._sleep(1)  # a profile without work of its own thread may be dropped
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "small kernels")


def breakdown(events: list[dict[str, object]]) -> dict[str, object]:
    """Microseconds a step by kind of kernel, and the share of the time in which nothing ran.

    A step is what lies between two draws: the draws are counted by the kernel that ends each.
    largest: kernels by the time that is theirs, with launches and microseconds a step. gaps: where
    nothing ran, by the kernels or copies before and behind, with how many and microseconds a step.
    """
    device = sorted(
        (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
        key=lambda e: float(e["ts"]),  # type: ignore[arg-type]
    )
    if not device:
        return {"error": "the trace has no device events"}
    begin = float(device[0]["ts"])  # type: ignore[arg-type]
    end = max(float(e["ts"]) + float(e["dur"]) for e in device)  # type: ignore[arg-type]
    by_kind: dict[str, float] = defaultdict(float)
    names: Counter[str] = Counter()
    by_name: dict[str, float] = defaultdict(float)
    gaps: Counter[tuple[str, str]] = Counter()
    by_gap: dict[tuple[str, str], float] = defaultdict(float)
    busy_us, covered_to, before = 0.0, begin, ""
    for event in device:
        start, duration = float(event["ts"]), float(event["dur"])  # type: ignore[arg-type]
        name = str(event["name"])
        # Dependent launches overlap: time counts for the kernel that began first.
        own = max(0.0, start + duration - max(start, covered_to))
        busy_us += own
        if start > covered_to:
            gaps[before, name[:60]] += 1
            by_gap[before, name[:60]] += start - covered_to
        if start + duration >= covered_to:
            covered_to, before = start + duration, name[:60]
        by_kind[kind_of(name)] += own
        names[name[:90]] += 1
        by_name[name[:90]] += own
    n_steps = max(1, _n_steps(device))
    waits: Counter[str] = Counter(
        str(e["name"])
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and SYNCHRONISING.search(str(e["name"]))
    )
    return {
        "n_steps": n_steps,
        "step_us": round((end - begin) / n_steps, 1),
        **{f"{kind}_us": round(us / n_steps, 1) for kind, us in sorted(by_kind.items())},
        "idle_share": round(1 - busy_us / (end - begin), 4),
        "kernels_a_step": round(len(device) / n_steps, 1),
        "waiting_calls": dict(waits),
        "largest": [
            [name, round(names[name] / n_steps, 1), round(us / n_steps, 1)]
            for name, us in sorted(by_name.items(), key=lambda item: -item[1])[:16]
        ],
        "gaps": [
            [*pair, round(gaps[pair] / n_steps, 2), round(us / n_steps, 1)]
            for pair, us in sorted(by_gap.items(), key=lambda item: -item[1])[:8]
        ],
    }


def _n_steps(device: list[dict[str, object]]) -> int:
    """Each step copies its ids to the host once."""
    return sum("DtoH" in str(event["name"]) for event in device)
