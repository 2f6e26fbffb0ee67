"""How fast weights come into memory: a sharded bfloat16 folder of random weights, and the default
model's GGUF file.

    python -m benchmarks.serving.bench_loading --folder /path/with/room [--shape 1b|llama|qwen]
        [--device cpu|cuda] [--against DIR] [--sources folder,default] [--out benchmarks/results]

A process loads the model several times; all read from the page cache. "first" is its first load,
after its libraries are imported and the device is there, "again" the median of the others, whose
memory the process has already had. "open" is the part before the weights: config, tokenizer,
headers. The rate is the files' bytes over the first load without that part. "beside" is the peak in
it beyond what the process had before, less the weights on a CPU: pages of the mapped files and
whatever the loader holds. --against: the `python` folder of another checkout, measured in turn
with this one. The folder is written on first use and left there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from benchmarks.results_file import write_results
from benchmarks.serving.random_folder import SHAPES, write_folder

_PACKAGE = Path(__file__).resolve().parents[2] / "python"
_CHILD = """
import json, sys, time
import numpy, safetensors, torch, tqdm
from astrai.models import load_model, open_checkpoint

def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) * 1024

source, device, dtype, n = sys.argv[1:]
source = None if source == "default" else source
if device != "cpu":
    torch.empty(1, device=device).add_(1)
    torch.cuda.synchronize()
before, runs = status("VmRSS"), []
for _ in range(int(n)):
    loaded = None
    began = time.perf_counter()
    opened = open_checkpoint(source, False)
    open_s = time.perf_counter() - began
    del opened
    began = time.perf_counter()
    loaded = load_model(source, device=device, dtype=dtype, progress=False)
    if device != "cpu":
        torch.cuda.synchronize()
    runs.append({"s": time.perf_counter() - began, "open_s": open_s})
    if len(runs) == 1:
        on_host = loaded.summary["weight_bytes"] if device == "cpu" else 0
        beside = status("VmHWM") - before - on_host
print(json.dumps({"runs": runs, "beside": beside}))
"""


def load(package: Path, source: str, device: str, dtype: str, n_loads: int) -> dict[str, object]:
    environment = {**os.environ, "PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", _CHILD, source, device, dtype, str(n_loads)]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    measured: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return measured


def row(measured: list[dict], n_bytes: int) -> dict[str, object]:
    """measured: one dict a process."""
    first = statistics.median(one["runs"][0]["s"] for one in measured)
    again = [run["s"] for one in measured for run in one["runs"][1:]]
    open_s = statistics.median(run["open_s"] for one in measured for run in one["runs"][1:])
    return {
        "first s": round(first, 2),
        "again s": round(statistics.median(again), 2),
        "best s": round(min(again), 2),
        "open s": round(open_s, 3),
        "GB": round(n_bytes / 1e9, 2),
        "GB/s": round(n_bytes / (first - open_s) / 1e9, 2),
        "beside MB": round(max(one["beside"] for one in measured) / 1e6),
    }


def stored_files(source: str) -> list[Path]:
    from astrai.models.default_model import fetch_default_model

    if source == "default":
        return [fetch_default_model(progress=False)]
    return sorted(Path(source).glob("*.safetensors"))


def fill_page_cache(files: list[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            while file.read(64 << 20):
                pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sources", default="folder,default")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="processes")
    parser.add_argument("--loads", type=int, default=3, help="loads of a process, at least 2")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    packages = {"this": _PACKAGE} | ({"before": args.against.resolve()} if args.against else {})
    names = {"folder": f"{args.shape}, bf16 shards", "default": "default model, Q4_1"}
    rows: list[dict[str, object]] = []
    for key in args.sources.split(","):
        source = str(args.folder) if key == "folder" else "default"
        if key == "default" or not write_folder(args.folder, args.shape):
            fill_page_cache(stored_files(source))
        n_bytes = sum(path.stat().st_size for path in stored_files(source))
        for dtype in args.dtypes.split(","):
            measured: dict[str, list[dict]] = {which: [] for which in packages}
            for _ in range(args.rounds):
                for which, package in packages.items():
                    measured[which].append(load(package, source, args.device, dtype, args.loads))
            head = {"source": names[key], "device": args.device, "dtype": dtype}
            for which, runs in measured.items():
                rows.append({**head, "checkout": which, **row(runs, n_bytes)})
                print(json.dumps(rows[-1]), flush=True)
    write_results(
        f"loading_{args.device}",
        f"Loading weights to {args.device}",
        f"{device_name(args.device)}. Columns: benchmarks/serving/bench_loading.py.",
        rows,
        args.out,
    )


def device_name(device: str) -> str:
    if device == "cpu":
        return f"{os.cpu_count()} cores, torch {torch.__version__}"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
