"""Times the prefix tree with its page allocator against a plain-Python oracle, in one process.

PYTHONPATH=python:. python -m benchmarks.core.bench_radix --write   # results/core_radix.{json,md}

fill    match, allocate and insert every sequence; nothing is evicted
warm    match every sequence again in another order; all of it is cached
evict   evict 2048 tokens a call until nothing is left
serve   a fresh cache of --capacity tokens: convert, match, evict what is short, insert, let go

The oracle's phases run between AstrAI's two page sizes, and all of it --rounds times: a figure is
the median over rounds, its spread the lowest and highest round.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.core.radix_adapter import AstraiCache
from benchmarks.core.radix_oracle import OracleCache
from benchmarks.core.radix_workload import LENGTH, make_sequences, shuffled
from benchmarks.results_file import write_results

EVICT_TOKENS = 2048
Figures = dict[str, float]


def microseconds(times_ns: list[int]) -> float:
    return statistics.median(times_ns) / 1000


def fill_warm_evict(make: Callable[[int, int], Any], page_size: int, seqs: Any) -> Figures:
    now = time.perf_counter_ns
    capacity = (len(seqs) + 1) * LENGTH
    cache = make(page_size, capacity)
    key_ns, match_ns, insert_ns, warm_ns, evict_ns = [], [], [], [], []
    for ids in seqs:
        t0 = now()
        key = cache.key(ids)
        t1 = now()
        matched = cache.match(key)
        t2 = now()
        slots = cache.alloc(key, matched)
        t3 = now()
        cache.insert(key, matched, slots)
        t4 = now()
        key_ns.append(t1 - t0)
        match_ns.append(t2 - t1)
        insert_ns.append(t4 - t3)
    n_cached = capacity - cache.free()
    figures: Figures = {"tokens_cached": n_cached}
    if isinstance(cache, AstraiCache):
        figures["bytes_per_token"] = cache.state_bytes() / n_cached
    keys = [cache.key(seqs[i]) for i in shuffled(len(seqs), 99)]
    for key in keys:
        t0 = now()
        matched = cache.match(key)
        t1 = now()
        cache.release(key)
        assert matched == LENGTH // page_size * page_size
        warm_ns.append(t1 - t0)
    while True:
        t0 = now()
        n_evicted = cache.evict(EVICT_TOKENS)
        t1 = now()
        if n_evicted == 0:
            break
        evict_ns.append(t1 - t0)
    return figures | {
        "key_us": microseconds(key_ns),
        "match_cold_us": microseconds(match_ns),
        "match_2048_us": microseconds(warm_ns),
        "insert_us": microseconds(insert_ns),
        "evict_2048_us": microseconds(evict_ns),
    }


def serve(make: Callable[[int, int], Any], page_size: int, seqs: Any, capacity: int) -> Figures:
    now = time.perf_counter_ns
    cache = make(page_size, capacity)
    n_hit = n_evicted = 0
    request_ns = []
    cpu_start = time.process_time_ns()
    for ids in seqs:
        t0 = now()
        key = cache.key(ids)
        matched = cache.match(key)
        lacking = LENGTH // page_size * page_size - matched - cache.free()
        if lacking > 0:
            n_evicted += cache.evict(lacking)
        cache.insert(key, matched, cache.alloc(key, matched))
        request_ns.append(now() - t0)
        n_hit += matched
    cpu_ns = time.process_time_ns() - cpu_start
    return {
        "requests_per_s": 1e9 * len(seqs) / sum(request_ns),
        "requests_per_cpu_s": 1e9 * len(seqs) / cpu_ns,
        "hit_rate": n_hit / (len(seqs) * LENGTH),
        "tokens_evicted": n_evicted,
    }


def one_round(subjects: list[tuple[str, Any, int]], seqs: Any, capacity: int) -> dict[str, Figures]:
    figures = {}
    for name, make, page_size in subjects:
        gc.collect()
        gc.disable()  # as servers do with gc.freeze
        try:
            figures[name] = fill_warm_evict(make, page_size, seqs)
            gc.collect()
            figures[name] |= serve(make, page_size, seqs, capacity)
        finally:
            gc.enable()
    return figures


def check_matches(seqs: list[array[int]]) -> None:
    """Matched lengths and, in a small cache, hit rates equal the oracle's."""
    for page_size in (1, 16):
        caches: list[Any] = [make(page_size, 100_000) for make in (AstraiCache, OracleCache)]
        for ids in seqs:
            pairs = [(cache, cache.key(ids)) for cache in caches]
            matched = [cache.match(key) for cache, key in pairs]
            if matched[0] != matched[1]:
                raise SystemExit(
                    f"page size {page_size}: matched {matched[0]}, oracle {matched[1]}"
                )
            for (cache, key), n in zip(pairs, matched, strict=True):
                lacking = LENGTH // page_size * page_size - n - cache.free()
                if lacking > 0:
                    cache.evict(lacking)
                cache.insert(key, n, cache.alloc(key, n))


def rows_of(name: str, rounds: list[dict[str, Figures]], baseline: str) -> list[dict[str, object]]:
    """One row a figure: over rounds the median, lowest and highest, and the median ratio."""
    rows: list[dict[str, object]] = []
    for figure in rounds[0][name]:
        values = [r[name][figure] for r in rounds]
        row: dict[str, object] = {"subject": name, "figure": figure}
        row |= {
            "median": round(statistics.median(values), 4),
            "lowest": round(min(values), 4),
            "highest": round(max(values), 4),
            "ratio_to_oracle": "",
        }
        if figure in rounds[0][baseline] and name != baseline:
            ratios = [r[name][figure] / r[baseline][figure] for r in rounds]
            row["ratio_to_oracle"] = round(statistics.median(ratios), 4)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--capacity", type=int, default=2_000_000, help="tokens, phase serve")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    seqs = make_sequences(args.n)
    check_matches(seqs[:1000])
    subjects = [
        ("astrai page 16", AstraiCache, 16),
        ("oracle page 16", OracleCache, 16),
        ("astrai page 1", AstraiCache, 1),
    ]
    rounds = [one_round(subjects, seqs, args.capacity) for _ in range(args.rounds)]
    write_results(
        "core_radix",
        "Prefix tree and page allocator",
        f"{args.n} sequences of {LENGTH} tokens, serve with {args.capacity} tokens, {args.rounds} "
        "rounds: median, lowest and highest over rounds; a time in microseconds is the median over "
        "calls. ratio_to_oracle: to the plain-Python oracle at page size 16 in the same round. "
        "bytes_per_token: state of the tree and the allocator for each cached token.",
        [row for name, _, _ in subjects for row in rows_of(name, rounds, "oracle page 16")],
        Path(__file__).parents[1] / "results" if args.write else None,
    )


if __name__ == "__main__":
    main()
