"""Times a step's plan (`_C.BatchPlan.build`) as the engine calls it, against numpy making it.

PYTHONPATH=python python -m benchmarks.core.bench_plan --write   # results/core_plan.{json,md}
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.results_file import write_results

from astrai._C import BatchPlan, Layout, PagePool

PAGE_SIZE = 16
MAX_SEQ_LEN = 2048
Q_TILE_ROWS = 64
SPLIT_LEN = 512
STACK_LEN = 4
WARM_UPS, REPEATS = 100, 1000


class Step:
    """Admitted requests and the lists that the scheduler hands over for one step."""

    def __init__(
        self, n_decode: int, seq_len: int, prefill_q_lens: list[int], n_shared: int = 0
    ) -> None:
        """n_shared: leading tokens that the decoding requests have in the same slots."""
        n_rows, self.n_decode = n_decode + len(prefill_q_lens), n_decode
        self.n_shared = n_shared
        n_pages = n_rows * (MAX_SEQ_LEN // PAGE_SIZE)
        self.pool = PagePool(n_rows, MAX_SEQ_LEN, PAGE_SIZE, n_pages * PAGE_SIZE)
        lengths = [seq_len] * n_decode + prefill_q_lens
        self.q_lens = [1] * n_decode + prefill_q_lens
        self.starts = [length - q_len for length, q_len in zip(lengths, self.q_lens, strict=True)]
        self.req_indices = []
        for row, length in enumerate(lengths):
            admission = self.pool.admit([0] * n_shared + [row] * (length - n_shared))
            assert admission is not None
            self.req_indices.append(admission.req_idx)
            if n_shared:
                self.pool.commit(admission.req_idx, length - 1)
        self.plan = BatchPlan(self.pool, sum(self.q_lens), n_rows, SPLIT_LEN)
        self.staging = np.empty(
            BatchPlan.staging_size(sum(self.q_lens), n_rows, n_rows * 4), np.int32
        )

        self.table = np.asarray(self.pool.table).reshape(n_rows, MAX_SEQ_LEN)
        self.token_ids = [np.array(self.pool.tokens(i), np.int32) for i in self.req_indices]

    def build(self) -> Layout:
        return self.plan.build(
            self.req_indices,
            self.starts,
            self.q_lens,
            staging=self.staging,
            q_tile_rows=Q_TILE_ROWS,
            n_decode=self.n_decode,
            stack_len=STACK_LEN,
        )

    def build_with_numpy(self) -> np.ndarray:
        """The same sections of requests that share nothing: a loop over rows, one concatenate."""
        ids, slots, positions, tile_rows, tile_indices, tile_keys = [], [], [], [], [], []
        for row, (req_idx, start, q_len) in enumerate(
            zip(self.req_indices, self.starts, self.q_lens, strict=True)
        ):
            end = start + q_len
            ids.append(self.token_ids[row][start:end])
            slots.append(self.table[req_idx, start:end])
            positions.append(np.arange(start, end, dtype=np.int32))
            n_tiles = -(-q_len // Q_TILE_ROWS) if row >= self.n_decode else 0
            tile_rows.append(np.full(n_tiles, row, np.int32))
            tile_indices.append(np.arange(n_tiles, dtype=np.int32))
            tile_keys.append(np.minimum(start + (tile_indices[-1] + 1) * Q_TILE_ROWS, end))
        q_lens = np.array(self.q_lens, np.int32)
        seq_lens = np.array(self.starts, np.int32) + q_lens
        qo_indptr = np.cumsum(q_lens, dtype=np.int32)
        zero = np.zeros(1, np.int32)
        sections = [*ids, *positions, *slots, seq_lens, np.array(self.req_indices, np.int32)]
        sections += [zero, np.cumsum(seq_lens, dtype=np.int32), zero, qo_indptr, qo_indptr - 1]
        tile_order = np.argsort(np.concatenate(tile_keys), kind="stable")
        sections += [np.concatenate(tiles)[tile_order] for tiles in (tile_rows, tile_indices)]
        n, n_splits = self.n_decode, -(-seq_lens[: self.n_decode] // SPLIT_LEN)
        split_indptr = np.cumsum(n_splits, dtype=np.int32)
        rows = np.arange(n, dtype=np.int32)
        firsts = split_indptr - n_splits.astype(np.int32)
        members = np.stack([rows, np.array(self.req_indices[:n]), seq_lens[:n], firsts], 1)
        splits = np.arange(n_splits.sum()) - np.repeat(firsts, n_splits)
        units = np.stack([np.repeat(rows, n_splits), splits * 256 + 1], 1)
        sections += [zero, split_indptr, members.ravel(), [len(units)], units.ravel()]
        joined = np.concatenate(sections, dtype=np.int32, casting="unsafe")
        self.staging[: len(joined)] = joined
        return joined

    def check(self) -> None:
        """Both ways give the same sections in the same order; ours aligns each to 16 bytes."""
        places = self.build().sections.values()
        ours = np.concatenate([self.staging[offset : offset + n] for offset, n in places])
        assert (ours == self.build_with_numpy()).all()


def microseconds(work: Callable[[], object], warm_ups: int, repeats: int) -> list[float]:
    for _ in range(warm_ups):
        work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e6)
    return times


CASES = {
    "64 decode rows": (64, 1000, []),
    "64 decode rows, 1536 tokens shared": (64, 2000, [], 1536),
    "256 decode rows, 1536 tokens shared": (256, 2000, [], 1536),
    "256 decode rows": (256, 1000, []),
    "one prefill of 512": (0, 0, [512]),
    "63 decode rows + prefill of 512": (63, 1000, [512]),
    "8 prefills of 1024": (0, 0, [1024] * 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/core_plan.*")
    args = parser.parse_args()
    rows = []
    for name, case in CASES.items():
        step = Step(*case)
        if step.n_shared == 0:
            step.check()
        ours = microseconds(step.build, WARM_UPS, REPEATS)
        baseline = microseconds(step.build_with_numpy, WARM_UPS // 10, REPEATS // 10)
        rows.append(
            {
                "case": name,
                "median_us": round(statistics.median(ours), 2),
                "p5_us": round(statistics.quantiles(ours, n=20)[0], 2),
                "p95_us": round(statistics.quantiles(ours, n=20)[-1], 2),
                "numpy_median_us": round(statistics.median(baseline), 1),
                "numpy_over_ours": round(statistics.median(baseline) / statistics.median(ours), 1),
            }
        )
    write_results(
        "core_plan",
        "Step plan: `_C.BatchPlan.build` from Python lists into a staging buffer",
        f"Pages of {PAGE_SIZE}, table rows of {MAX_SEQ_LEN}, decode rows of 1000 tokens; "
        f"{WARM_UPS} warm-ups, {REPEATS} repeats (a tenth for numpy, which makes the same sections "
        "from token ids that are arrays already). Target: 256 decode rows under 50 us.",
        rows,
        Path(__file__).parents[1] / "results" if args.write else None,
    )


if __name__ == "__main__":
    main()
