"""Seconds that translation units took to compile, from the log of a Ninja build folder."""

from __future__ import annotations

from pathlib import Path


def compile_seconds(build: Path) -> dict[str, float]:
    """Object file -> seconds of its last build; format: https://ninja-build.org/manual.html#ref_log"""
    times: dict[str, float] = {}
    for line in (build / ".ninja_log").read_text().splitlines():
        if line.startswith("#"):
            continue
        start_ms, end_ms, _mtime, output, _command = line.split("\t")
        if output.endswith(".o"):
            times[output] = (int(end_ms) - int(start_ms)) / 1000
    return times
