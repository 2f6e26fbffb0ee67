"""Prefix hits of several pools by how requests are routed to them: the real router over the real
bookkeeping of the KV cache, without a model.

    python benchmarks/core/bench_routing.py [--n 2000] [--out benchmarks/results]

Each request is admitted to the pool of its replica, written, recorded, and released when N_OPEN
later ones have come for each replica. The same requests in the same order for each routing.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.core.radix_workload import LENGTH, make_sequences
from benchmarks.results_file import write_results

from astrai._C import Int32Array, PagePool
from astrai.deploy.prefix_affinity import PrefixAffinity, page_keys

PAGE_SIZE = 16
POOL_TOKENS = 65_536
N_OPEN = 8  # requests of a replica at once, on average
MAX_BATCH = 64
REPLICAS = (2, 4, 8)

# Keys of a prompt and open requests by replica -> replica.
Choose = Callable[[list[int], Counter[str]], str]


def routings(names: list[str]) -> dict[str, tuple[Choose, Callable[[list[int], str], None]]]:
    """By name: how a replica is chosen, and what is told about each choice."""
    rng = random.Random(5)
    affinity = PrefixAffinity(max_lead=N_OPEN)

    def nothing(keys: list[int], name: str) -> None:
        pass

    def prefix(keys: list[int], open_requests: Counter[str]) -> str:
        return affinity.rank(keys, {name: open_requests[name] for name in names})[0]

    def least_loaded(keys: list[int], open_requests: Counter[str]) -> str:
        return min(rng.sample(names, len(names)), key=lambda name: open_requests[name])

    def at_random(keys: list[int], open_requests: Counter[str]) -> str:
        return rng.choice(names)

    return {
        "prefix": (prefix, affinity.record),
        "least loaded": (least_loaded, nothing),
        "random": (at_random, nothing),
    }


def measure(
    n_replicas: int, routing: str, prompts: list[tuple[Int32Array, list[int]]]
) -> dict[str, object]:
    names = [f"replica-{i}" for i in range(n_replicas)]
    pools = {name: PagePool(MAX_BATCH, LENGTH + 1, PAGE_SIZE, POOL_TOKENS) for name in names}
    choose, tell = routings(names)[routing]
    running: deque[tuple[str, int]] = deque()
    open_requests: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    n_cached = highest_lead = 0
    for ids, keys in prompts:
        name = choose(keys, open_requests)
        tell(keys, name)
        admission = pools[name].admit(ids)
        assert admission is not None, f"{name} is full: {open_requests}"
        n_cached += admission.n_cached
        pools[name].commit(admission.req_idx, len(ids))
        running.append((name, admission.req_idx))
        open_requests[name] += 1
        requests[name] += 1
        loads = [open_requests[each] for each in names]
        highest_lead = max(highest_lead, max(loads) - min(loads))
        if len(running) > N_OPEN * n_replicas:
            ended, req_idx = running.popleft()
            pools[ended].release(req_idx)
            open_requests[ended] -= 1
    for pool in pools.values():
        pool.check_integrity()
    n_tokens = LENGTH * len(prompts)
    counts = sorted(requests[name] for name in names)
    return {
        "replicas": n_replicas,
        "routing": routing,
        "hit rate, %": round(100 * n_cached / n_tokens, 1),
        "tokens to compute": n_tokens - n_cached,
        "requests of a replica": f"{counts[0]} to {counts[-1]}",
        "open requests apart, at most": highest_lead,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2000, help="requests (default 2000)")
    parser.add_argument("--out", type=Path, help="folder to write the results to")
    options = parser.parse_args()
    prompts = [(Int32Array(ids), page_keys(ids, PAGE_SIZE)) for ids in make_sequences(options.n)]
    rows = [
        measure(n_replicas, routing, prompts)
        for n_replicas in REPLICAS
        for routing in routings(["any"])
    ]
    conditions = (
        f"{options.n} requests of {LENGTH} prompt tokens that share prefixes as chats do "
        f"(benchmarks/core/radix_workload.py); {POOL_TOKENS} token slots a replica in pages of "
        f"{PAGE_SIZE}; {N_OPEN} open requests a replica on average. Counts of the real router over "
        "real pools, without a model: they depend on no clock."
    )
    write_results("routing", "Prefix hits by routing", conditions, rows, options.out)


if __name__ == "__main__":
    main()
