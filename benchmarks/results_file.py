"""Prints measurements with the machine's calibration; writes them to benchmarks/results."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.calibration import calibrate, machine


def write_results(
    stem: str,
    title: str,
    conditions: str,
    rows: list[dict[str, object]],
    folder: Path | None,
) -> None:
    """rows: one dict a measurement, all with the same keys. folder None prints only."""
    # Other work on the machine stretches long measurements more than short ones, hence ratios too.
    head = {**machine(), **calibrate(), "load_1min": round(os.getloadavg()[0], 1)}
    columns = list(rows[0])
    lines = [f"# {title}", "", conditions, ""]
    lines += [", ".join(f"{key} {value}" for key, value in head.items()) + ".", ""]
    lines += ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    text = "\n".join(lines) + "\n"
    print(text)
    if folder is not None:
        (folder / f"{stem}.md").write_text(text)
        result = {"title": title, "conditions": conditions, "machine": head, "rows": rows}
        (folder / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
