"""Prefix hits behind Ray Serve by how requests are routed: to the replica that has their pages, to
the least loaded one, at random.

    python benchmarks/serving/bench_ray_routing.py [--n 60] [--out benchmarks/results]

The requests share prefixes as those of bench_radix.py do. Each routing starts with new replicas and
gets the same requests in the same order; a pool holds five of them. Needs the ray extra.
"""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx
import ray
from benchmarks.core.radix_workload import make_sequences
from benchmarks.results_file import write_results
from benchmarks.serving.bench_startup import free_port
from ray import serve

from astrai.deploy.ray import app

ROUTINGS = ("prefix", "least_loaded", "random")
N_TOKENS = 384
N_OUTPUT = 2
KV_TOKENS = 2048
N_OPEN = 4
N_REPLICAS = 2


def measure(url: str, routing: str, prompts: list[list[int]]) -> dict[str, object]:
    """One pass of all prompts, N_OPEN at a time."""
    with httpx.Client(base_url=url, timeout=600) as http:
        names = sorted(replicas(http))
        rng = random.Random(5)
        chosen = [rng.choice(names) if routing == "random" else None for _ in prompts]

        def ask(prompt_ids: list[int], name: str | None) -> str:
            body = {
                "model": "astrai",
                "prompt": prompt_ids,
                "max_tokens": N_OUTPUT,
                "ignore_eos": True,
            }
            headers = {} if name is None else {"x-astrai-replica": name}
            answer = http.post("/v1/completions", json=body, headers=headers)
            answer.raise_for_status()
            return str(answer.headers["x-astrai-replica"])

        with ThreadPoolExecutor(N_OPEN) as pool:
            answered = list(pool.map(ask, prompts, chosen))
        stats = replicas(http).values()
    asked = sum(each["prefix_query_tokens"] for each in stats)
    hit = sum(each["prefix_hit_tokens"] for each in stats)
    return {
        "routing": routing,
        "prompt tokens": asked,
        "from the cache": hit,
        "hit rate, %": round(100 * hit / asked, 1),
        "computed": asked - hit,
        "requests by replica": " + ".join(str(answered.count(name)) for name in names),
    }


def replicas(http: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/replicas").raise_for_status().json()["replicas"]
    assert len(found) == N_REPLICAS, found
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=60, help="requests (default 60)")
    parser.add_argument("--out", type=Path, help="folder to write the results to")
    options = parser.parse_args()
    prompts = [list(ids) for ids in make_sequences(options.n, length=N_TOKENS)]
    port = free_port()
    ray.init(num_cpus=4 * N_REPLICAS, include_dashboard=False, logging_level="warning")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    rows = []
    for routing in ROUTINGS:
        args = {
            "num_replicas": N_REPLICAS,
            "kv_tokens": KV_TOKENS,
            "max_batch_size": N_OPEN,
            "routing": "prefix" if routing == "prefix" else "least_loaded",
        }
        serve.run(app(args), name="astrai")
        rows.append(measure(f"http://127.0.0.1:{port}", routing, prompts))
        print(rows[-1], flush=True)
        serve.delete("astrai")
    ray.shutdown()
    conditions = (
        f"{options.n} requests of {N_TOKENS} prompt and {N_OUTPUT} output tokens that share "
        f"prefixes as chats do (benchmarks/core/radix_workload.py), {N_OPEN} open at a time; "
        f"{N_REPLICAS} replicas of the default model on the CPUs of one machine, {KV_TOKENS} token "
        f"slots each; Ray {ray.__version__}. Routings as in docs/guide/ray.md; random draws a "
        "replica for each request."
    )
    write_results("ray_routing", "Prefix hits behind Ray Serve", conditions, rows, options.out)


if __name__ == "__main__":
    main()
