r"""AstrAI, transformers and llama.cpp on the default model and a CPU, side by side in one run.

    python benchmarks/serving/bench_cpu_engines.py --gguf MODEL.gguf --work FOLDER \
        --llama-python VENV/bin/python

Each engine is one process with the same number of threads; rounds go over all engines in turn, so
that a slow moment of the machine meets all of them. Decode rates come from the difference of a long
and a short generation, prefill from a one-token generation of a 512-token prompt. Needs
`transformers`, and llama-cpp-python in the given interpreter (left out without one).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.calibration import calibrate, machine, summary
from benchmarks.serving.model_files import write_bf16_gguf, write_hf_folder

PROMPT, NEW, PREFILL, VOCAB = 32, 48, 512, 49152


@dataclass
class Engine:
    """A running worker process and what was measured of it."""

    name: str
    process: subprocess.Popen[str]
    rates: dict[str, list[float]] = field(default_factory=dict)

    def read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the worker ended with {self.process.wait()}")
        return json.loads(line)

    def seconds(self, prompts: list[list[int]], n_new: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "n_new": n_new}) + "\n")
        self.process.stdin.flush()
        return self.read()["seconds"]

    def add(self, what: str, rate: float) -> None:
        self.rates.setdefault(what, []).append(rate)


def start(name: str, python: str, peer: str, model: Path, dtype: str, threads: int) -> Engine:
    worker = Path(__file__).with_name("worker.py")
    command = [
        python,
        str(worker),
        "--peer",
        peer,
        "--model",
        str(model),
        "--dtype",
        dtype,
        "--threads",
        str(threads),
    ]
    engine = Engine(
        name, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    engine.read()
    return engine


def measure(engine: Engine, rng: random.Random) -> None:
    """One round: decode at batch 1 and 8, prefill of 512 tokens; fresh random prompts."""

    def prompts(n: int, length: int) -> list[list[int]]:
        return [[rng.randrange(5, VOCAB) for _ in range(length)] for _ in range(n)]

    for batch in (1, 8):
        work = prompts(batch, PROMPT)
        taken = engine.seconds(work, NEW + 1) - engine.seconds(work, 1)
        engine.add(f"decode_b{batch}", batch * NEW / taken)
    engine.add("prefill_512", PREFILL / engine.seconds(prompts(1, PREFILL), 1))


def table(engines: list[Engine]) -> str:
    lines = [
        "| engine | prefill 512 | decode batch 1 | decode batch 8 |",
        "| --- | --- | --- | --- |",
    ]
    for engine in engines:
        cells = [
            f"{statistics.median(engine.rates[k]):.1f}"
            for k in ("prefill_512", "decode_b1", "decode_b8")
        ]
        lines.append(f"| {engine.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the default model's file")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the converted files (0.8 GB)"
    )
    parser.add_argument("--llama-python", help="an interpreter with llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()

    folder, bf16 = args.work / "hf", args.work / "bf16.gguf"
    if not (folder / "model.safetensors").exists():
        write_hf_folder(args.gguf, folder)
    if args.llama_python and not bf16.exists():
        write_bf16_gguf(args.gguf, bf16)

    engines = []
    for dtype in args.dtypes:
        engines.append(
            start(f"astrai {dtype}", sys.executable, "astrai", args.gguf, dtype, args.threads)
        )
        engines.append(
            start(
                f"transformers {dtype}", sys.executable, "transformers", folder, dtype, args.threads
            )
        )
    if args.llama_python:
        engines.append(
            start("llama.cpp BF16", args.llama_python, "llama.cpp", bf16, "bfloat16", args.threads)
        )
        engines.append(
            start("llama.cpp Q4_1", args.llama_python, "llama.cpp", args.gguf, "q4_1", args.threads)
        )

    rng = random.Random(1)
    before = calibrate()
    for _ in range(args.rounds + 1):
        for engine in engines:
            measure(engine, rng)
    for engine in engines:
        for values in engine.rates.values():
            del values[0]  # the first round warms up
    result = {
        "what": "SmolLM2-135M-Instruct, tokens a second, medians",
        **machine(),
        "threads": args.threads,
        "prompt": PROMPT,
        "new": NEW,
        "calibration_before": before,
        "calibration_after": calibrate(),
        "engines": {e.name: {k: summary(v) for k, v in e.rates.items()} for e in engines},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "cpu_engines.json").write_text(json.dumps(result, indent=1) + "\n")
    text = table(engines)
    (args.out / "cpu_engines.md").write_text(
        f"# CPU engines ({result['cpu']}, {args.threads} threads)\n\n{text}\n"
    )
    print(text)
    for engine in engines:
        engine.process.kill()


if __name__ == "__main__":
    main()
