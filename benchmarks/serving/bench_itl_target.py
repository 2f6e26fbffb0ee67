"""What `itl_target_ms` holds on a GPU: 64 requests decode, and a prompt of 100 000 tokens arrives.

    python -m benchmarks.serving.bench_itl_target --out benchmarks/results

Random bfloat16 weights of the shapes in `workloads.MODELS`, one engine for each target. The times
between two tokens are those of the 64, from the arrival of the long prompt to its first token. Both
files are written after every engine, so that a run cut short leaves what it has; text under
"## What holds it" is written by hand, kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.serving import workloads
from benchmarks.serving.bench_gpu_engine import machine
from benchmarks.serving.gpu_engine import Client, WordTokenizer, random_model
from benchmarks.serving.gpu_engine_table import NOTES
from benchmarks.serving.timeline import Timeline, percentile, ttft_ms

from astrai.engine import InferenceEngine
from astrai.models import CausalLM

Row = dict[str, Any]  # of one engine

MAX_SEQ_LEN = 102_400
N_LONG = 100_000  # tokens of the prompt that arrives
N_RUNNING = 64  # requests that decode, of 512 tokens in
TARGETS: dict[str, tuple[float | None, ...]] = {"qwen": (None, 8.0), "llama": (None, 15.0)}
# When the long prompt arrives, in seconds: all prompts of the 64 have been computed then.
ARRIVES_AFTER_S = {"qwen": 0.6, "llama": 2.0}
# Tokens of each of the 64: they outlast the long prompt.
N_OUTPUT = {"qwen": 1800, "llama": 2200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="qwen,llama")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--n-output", type=int, help="tokens of each of the 64")
    parser.add_argument("--n-long", type=int, default=N_LONG)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    rows: list[Row] = []
    for name in args.models.split(","):
        model = random_model(workloads.MODELS[name], MAX_SEQ_LEN, args.device)
        for target_ms in TARGETS[name]:
            n_output = args.n_output or N_OUTPUT[name]
            row = measure(model, target_ms, args.n_long, n_output, ARRIVES_AFTER_S[name])
            rows.append({"model": name, "itl_target_ms": target_ms, "commit": args.commit, **row})
            print(rows[-1], flush=True)
            write(args.out, machine(args.commit), rows)


def measure(
    model: CausalLM, target_ms: float | None, n_long: int, n_output: int, arrives_after_s: float
) -> Row:
    tokenizer: Any = WordTokenizer(model.config.vocab_size)
    engine = InferenceEngine(
        model,
        tokenizer,
        N_RUNNING + 1,
        MAX_SEQ_LEN,
        kv_mode="paged",
        kv_tokens=n_long + N_RUNNING * (512 + n_output) + 4096,
        max_queue=N_RUNNING + 1,
        itl_target_ms=target_ms,
    )
    client = Client(engine)
    client.run([workloads.single(n_output=1)])
    running = [workloads.single(n_output=n_output, seed=10 + i) for i in range(N_RUNNING)]
    long = workloads.single(n_prompt=n_long, n_output=2, seed=9)
    arrivals = [0.0] * N_RUNNING + [arrives_after_s]
    *others, last = client.run([*running, long], arrivals, namespace="itl")
    engine.shutdown()
    between = itl_within(others, last.submitted_at, last.times[0])
    return {
        "steps": len(between) // N_RUNNING,
        "itl_ms": {f"p{p}": percentile(between, p) for p in (50, 99)} | {"max": max(between)},
        "long_ttft_ms": ttft_ms([last])[0],
        "others_end_before": sum(one.times[-1] < last.times[0] for one in others),
    }


def itl_within(timelines: list[Timeline], begin: float, end: float) -> list[float]:
    """Milliseconds between tokens whose later one came between begin and end, in seconds."""
    return [
        1e3 * (later - earlier)
        for timeline in timelines
        for earlier, later in zip(timeline.times, timeline.times[1:], strict=False)
        if begin <= later <= end
    ]


def write(folder: Path, about: dict[str, Any], rows: list[Row]) -> None:
    result = {"machine": about, "rows": rows}
    (folder / "itl_target.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        "# What itl_target_ms holds on a GPU",
        "",
        ", ".join(f"{key} {value}" for key, value in about.items()) + ".",
        "Made by `benchmarks/serving/bench_itl_target.py`: random bfloat16 weights of the",
        f"shapes of Qwen3-0.6B and Llama-3.1-8B, {N_RUNNING} requests that decode, and a prompt of",
        f"{N_LONG} tokens that arrives. Milliseconds between two tokens of the {N_RUNNING} until",
        "the first token of the long prompt, and the time to that.",
        "",
        "| model | target, ms | ITL p50 | ITL p99 | longest | TTFT of the long prompt, s | steps "
        "| at commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        itl, target = row["itl_ms"], row["itl_target_ms"]
        cells = [row["model"], "none" if target is None else f"{target:g}"]
        cells += [f"{itl[key]:.1f}" for key in ("p50", "p99", "max")]
        cells += [f"{row['long_ttft_ms'] / 1e3:.2f}", str(row["steps"]), row["commit"]]
        lines.append(f"| {' | '.join(cells)} |")
    target = folder / "itl_target.md"
    _, mark, notes = target.read_text().partition(NOTES) if target.exists() else ("", "", "")
    target.write_text("\n".join(lines) + "\n" + mark + notes)


if __name__ == "__main__":
    main()
