"""What `batch_invariant` costs on a GPU: W1 to W3 with and without it, in one process.

    python -m benchmarks.serving.bench_batch_invariant --out benchmarks/results

Random bfloat16 weights of the shapes in `workloads.MODELS`; the same model and the same requests
either way. Both files are written after every engine, so that a run cut short leaves what it has.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.serving import workloads
from benchmarks.serving.bench_gpu_engine import machine, spread
from benchmarks.serving.gpu_engine import Client, WordTokenizer, random_model
from benchmarks.serving.timeline import output_rate, ttft_ms

from astrai.engine import InferenceEngine
from astrai.models import CausalLM

Row = dict[str, Any]  # of one engine

MAX_SEQ_LEN = 8192
N_AT_ONCE = {"qwen": 256, "llama": 128}  # W1, W2
N_SINGLE = 3  # runs of W3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="qwen,llama")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kv-tokens", type=int, default=400_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    rows: list[Row] = []
    for name in args.models.split(","):
        model = random_model(workloads.MODELS[name], MAX_SEQ_LEN, args.device)
        for is_invariant in (True, False):
            row = measure(model, N_AT_ONCE[name], is_invariant, args.kv_tokens)
            rows.append({"model": name, "batch_invariant": is_invariant, **row})
            print(rows[-1], flush=True)
            write(args.out, args.commit, rows)


def measure(model: CausalLM, n: int, is_invariant: bool, kv_tokens: int) -> Row:
    """W3 and W1 or W2 (n requests) on an engine of their own."""
    began_at = time.perf_counter()
    tokenizer: Any = WordTokenizer(model.config.vocab_size)
    engine = InferenceEngine(
        model,
        tokenizer,
        n,
        MAX_SEQ_LEN,
        kv_mode="paged",
        kv_tokens=kv_tokens,
        max_queue=n,
        batch_invariant=is_invariant,
    )
    client = Client(engine)
    client.run([workloads.single(n_output=1)])
    start_s = time.perf_counter() - began_at
    token_ms, first_ms = [], []
    for i in range(N_SINGLE):
        (timeline,) = client.run([workloads.single()], namespace=f"single {i}")
        token_ms.append(1e3 * (timeline.times[-1] - timeline.times[0]) / (timeline.n_tokens - 1))
        first_ms += ttft_ms([timeline])
    rate = output_rate(client.run(workloads.at_once(n), namespace="at once"))
    engine.shutdown()
    return {
        "start_s": start_s,
        "n": n,
        "output_tokens_s": rate,
        "single_ms_a_token": spread(token_ms),
        "single_ttft_ms": spread(first_ms),
    }


def write(folder: Path, commit: str, rows: list[Row]) -> None:
    about = machine(commit)
    result = {"machine": about, "rows": rows}
    (folder / "batch_invariant.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        "# What batch_invariant costs on a GPU",
        "",
        ", ".join(f"{key} {value}" for key, value in about.items()) + ".",
        "Made by `benchmarks/serving/bench_batch_invariant.py`: random bfloat16 weights of the",
        "shapes of Qwen3-0.6B and Llama-3.1-8B; W1 (qwen, 256 requests) and W2 (llama, 128) once,",
        f"W3 as the median of {N_SINGLE}. Cost: how much longer the same work takes.",
        "",
        "| model | work | without | with | cost |",
        "|---|---|---|---|---|",
    ]
    by_kind = {(row["model"], row["batch_invariant"]): row for row in rows}
    for model in dict.fromkeys(row["model"] for row in rows):
        with_it, without = by_kind.get((model, True)), by_kind.get((model, False))
        work = "W1" if model == "qwen" else "W2"
        lines += [
            _line(model, f"{work}, us an output token", with_it, without, _us_a_token),
            _line(model, "W3, ms a token", with_it, without, lambda r: r["single_ms_a_token"]),
            _line(
                model, "W3, ms to the first token", with_it, without, lambda r: r["single_ttft_ms"]
            ),
        ]
    (folder / "batch_invariant.md").write_text("\n".join(lines) + "\n")


def _us_a_token(row: Row) -> dict[str, float]:
    return {"median": 1e6 / row["output_tokens_s"]}


def _line(
    model: str,
    work: str,
    with_it: Row | None,
    without: Row | None,
    times: Callable[[Row], dict[str, float]],
) -> str:
    """One row of the table; a dash for what was not measured."""
    was, now = (None if row is None else times(row)["median"] for row in (without, with_it))
    cost = "-" if was is None or now is None else f"{now / was - 1:+.0%}"
    shown = ["-" if value is None else f"{value:.2f}" for value in (was, now)]
    return f"| {model} | {work} | {shown[0]} | {shown[1]} | {cost} |"


if __name__ == "__main__":
    main()
