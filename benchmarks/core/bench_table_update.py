"""Times `RequestTable.write_update`, the table entries that travel with a step, against torch.

PYTHONPATH=python python -m benchmarks.core.bench_table_update --write
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.results_file import write_results

from astrai import _C
from astrai.kvcache.table import RequestTable

PAGE_SIZE = 16
MAX_SEQ_LEN = 2048
WARM_UPS, REPEATS = 50, 500

# Rows whose table changes in one step, and the entries of each.
CASES = {
    "16 rows that get a page": (16, PAGE_SIZE),
    "64 rows that get a page": (64, PAGE_SIZE),
    "256 rows that get a page": (256, PAGE_SIZE),
    "8 prompts of 1024": (8, 1024),
}


def written_by_torch(
    table: RequestTable, spans: list[tuple[int, int, int]], out: torch.Tensor
) -> None:
    """The same update by an arange and a copy of a slice for each row."""
    positions, slots = out.view(2, -1)
    cursor = 0
    for req_idx, begin, end in spans:
        n = end - begin
        first = req_idx * table.host.shape[1] + begin
        torch.arange(first, first + n, dtype=torch.int32, out=positions[cursor : cursor + n])
        slots[cursor : cursor + n] = table.host[req_idx, begin:end]
        cursor += n


def dirty_pool(n_rows: int, n_entries: int) -> _C.PagePool:
    """A pool whose rows have n_entries dirty entries each."""
    pool = _C.PagePool(n_rows, MAX_SEQ_LEN, PAGE_SIZE, n_rows * MAX_SEQ_LEN)
    for row in range(n_rows):
        assert pool.admit([row] * n_entries) is not None
    return pool


def cpu_microseconds(work: Callable[[], object], warm_ups: int, repeats: int) -> list[float]:
    """Processor time of this thread, which other processes of a busy machine do not lengthen."""
    for _ in range(warm_ups):
        work()
    times = []
    for _ in range(repeats):
        begin = time.thread_time()
        work()
        times.append((time.thread_time() - begin) * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="write benchmarks/results/core_table_update.*"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)  # an operation of 16 entries has no work for a second
    rows = []
    for name, (n_rows, n_entries) in CASES.items():
        pool = dirty_pool(n_rows, n_entries)
        table = RequestTable(pool, torch.device("cpu"))
        spans = pool.take_dirty()
        out, expected = torch.empty(2, 2 * n_rows * n_entries, dtype=torch.int32)

        def ours(
            table: RequestTable = table, spans: _C.DirtySpans = spans, out: torch.Tensor = out
        ) -> None:
            table.write_update(spans, out)

        def baseline(
            table: RequestTable = table,
            spans: _C.DirtySpans = spans,
            out: torch.Tensor = expected,
        ) -> None:
            written_by_torch(table, [(s.req_idx, s.begin, s.end) for s in spans], out)

        ours()
        baseline()
        assert torch.equal(out, expected)
        ours_us = cpu_microseconds(ours, WARM_UPS, REPEATS)
        torch_us = cpu_microseconds(baseline, WARM_UPS // 10, REPEATS // 10)
        rows.append(
            {
                "case": name,
                "median_us": round(statistics.median(ours_us), 2),
                "p5_us": round(statistics.quantiles(ours_us, n=20)[0], 2),
                "p95_us": round(statistics.quantiles(ours_us, n=20)[-1], 2),
                "torch_median_us": round(statistics.median(torch_us), 1),
                "torch_over_ours": round(
                    statistics.median(torch_us) / statistics.median(ours_us), 1
                ),
            }
        )
    write_results(
        "core_table_update",
        "Table update of a step: `RequestTable.write_update` into a staging buffer",
        f"Table rows of {MAX_SEQ_LEN}; {WARM_UPS} warm-ups, {REPEATS} repeats (a tenth for torch, "
        "which writes the same words by one arange and one copy a row, on one thread). "
        "Processor time of the thread.",
        rows,
        Path(__file__).parents[1] / "results" if args.write else None,
    )


if __name__ == "__main__":
    main()
