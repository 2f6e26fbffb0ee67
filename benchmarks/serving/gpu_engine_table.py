"""The table of `bench_gpu_engine`'s results beside other engines on the same card.

    python -m benchmarks.serving.gpu_engine_table benchmarks/results

A row with a "commit" of its own was measured by another run than the rest of its file.
The others' figures were taken on an NVIDIA H200 (CUDA 13.0, torch 2.11.0, 16 CPU cores, bfloat16)
with the same requests: vLLM 0.26.0 with its defaults, SGLang 0.5.17. Their W5 went over HTTP.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROWS = (  # work, key of the result, (vLLM, SGLang) by model
    ("W1/W2 output tokens/s", "median", {"qwen": ("22418", "21333"), "llama": ("7413", "7132")}),
    ("W3 ms a token", "median", {"qwen": ("2.13", "1.70"), "llama": ("4.92", "4.94")}),
    ("W3 TTFT ms", "median", {"qwen": ("11.5", "10.4"), "llama": ("16.9", "16.7")}),
    ("W4 64 out, cold, s", "median", {"qwen": ("0.597", "0.509"), "llama": ("1.010", "1.203")}),
    ("W4 64 out, warm, s", "median", {"qwen": ("0.585", "0.486"), "llama": ("0.947", "0.926")}),
    ("W4 1 out, cold, s", "median", {"qwen": ("0.285", "0.093"), "llama": ("0.408", "0.506")}),
    ("W4 1 out, warm, s", "median", {"qwen": ("0.303", "0.178"), "llama": ("0.318", "0.245")}),
    ("W5 16/s", "latency", {"qwen": ("33/68, 2.6/24.7", "16/26, 1.9/10.0")}),
    ("W5 48/s", "latency", {"qwen": ("50/122, 4.3/35.8", "26/66, 2.9/35.8")}),
    ("W5 8/s", "latency", {"llama": ("31/62, 5.0/20.4", "27/45, 5.2/17.1")}),
    ("W5 20/s", "latency", {"llama": ("28/75, 5.6/25.6", "29/61, 5.8/37.7")}),
    (
        "W5 all at once",
        "output_tokens_s",
        {"qwen": ("18232", "11847"), "llama": ("11853", "11135")},
    ),
    (
        "W5 all at once, empty cache",
        "output_tokens_s",
        {"qwen": ("12692", "-"), "llama": ("5787", "-")},
    ),
)
NOTES = "## What holds it"  # written by hand, kept
PROFILE = ("products", "attention", "sampling", "small kernels", "copies")


def main() -> None:
    folder = Path(sys.argv[1])
    results = {
        model: json.loads((folder / f"gpu_engine_{model}.json").read_text())
        for model in ("qwen", "llama")
    }
    lines = ["# The engine on one GPU, W1 to W4", ""]
    lines += [
        "In this process, text made for every token, no HTTP. Random bfloat16 weights of the "
        "shapes of Qwen3-0.6B and Llama-3.1-8B; `benchmarks/serving/workloads.py` says what the "
        "work is. Medians of three, of W1 and W2 of as many runs as the JSON says. W5 is measured "
        "over HTTP: `http_engine.md`.",
        "",
    ]
    for model, result in results.items():
        lines += _table(model, result)
    target = folder / "gpu_engine.md"
    _, mark, notes = target.read_text().partition(NOTES) if target.exists() else ("", "", "")
    target.write_text("\n".join(lines) + mark + notes)


def _table(model: str, result: dict[str, Any]) -> list[str]:
    rows = {row["work"]: row for row in result["rows"]}
    head = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items())
    lines = [f"## {model}", f"{head}; {settings}.", ""]
    commit = result["machine"]["commit"]
    lines += [
        "| work | AstrAI | at commit | vLLM 0.26.0 | SGLang 0.5.17 |",
        "|---|---|---|---|---|",
    ]
    for work, key, others in ROWS:
        if work in rows and model in others:
            row = rows[work]
            cells = [work, value_of(row, key), row.get("commit", commit), *others[model]]
            lines.append(f"| {' | '.join(cells)} |")
    start = rows["start to first token, s"]["seconds"]
    lines += [f"| start of the engine to first token, s | {start:.1f} | {commit} | | |", ""]
    lines += ["One step on the device, in microseconds (a trace of the running engine):", ""]
    lines += [
        f"| steps | us | {' | '.join(PROFILE)} | idle | kernels | at commit |",
        "|---|---|" + "---|" * (len(PROFILE) + 3),
    ]
    for work, row in rows.items():
        if work.startswith("profile"):
            parts = " | ".join(f"{row.get(f'{kind}_us', 0):.0f}" for kind in PROFILE)
            lines.append(
                f"| {work.removeprefix('profile of ')} | {row['step_us']:.0f} | {parts} | "
                f"{100 * row['idle_share']:.1f} % | {row['kernels_a_step']:.0f} | "
                f"{row.get('commit', commit)} |"
            )
    memory = rows.get("memory, GiB")
    if memory is not None:
        promised = sum(value for value in memory.values() if isinstance(value, float))
        used = rows["device memory in use, GiB"]["used"]
        lines += ["", f"The ledger's parts add up to {promised:.2f} GiB, beside the context; "]
        lines[-1] += f"the driver says {used:.2f} GiB in all."
    return [*lines, ""]


def value_of(row: dict[str, Any], key: str) -> str:
    if key == "latency":
        first = f"{row['ttft_p50']:.0f}/{row['ttft_p99']:.0f}"
        return f"{first}, {row['itl_p50']:.1f}/{row['itl_p99']:.1f}"
    value = row[key]
    return f"{value:.0f}" if value > 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
