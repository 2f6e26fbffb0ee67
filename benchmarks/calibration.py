"""How fast this machine is right now: printed beside every absolute time, so that figures of two
runs can be compared."""

from __future__ import annotations

import platform
import statistics
import subprocess
import time
from datetime import date
from pathlib import Path


def _best_of(repeats: int, work: object) -> float:
    assert callable(work)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _ten_million_additions() -> None:
    total = 0
    for i in range(10_000_000):
        total += i


def calibrate() -> dict[str, float]:
    """Best of five: seconds for 10^7 Python additions, GB/s (read + written) of a 64 MB copy."""
    source, target = bytearray(64_000_000), bytearray(64_000_000)

    def copy() -> None:
        target[:] = source

    return {
        "python_1e7_additions_s": round(_best_of(5, _ten_million_additions), 4),
        "memcpy_64mb_gb_per_s": round(2 * 0.064 / _best_of(5, copy), 2),
    }


def machine() -> dict[str, str]:
    """CPU model, Python, date and commit, for the head of a result file."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    return {
        "cpu": cpu,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
        "commit": commit,
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median, best and worst of repeated measurements."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }
