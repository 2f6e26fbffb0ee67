"""How fast weights come into memory: a sharded bfloat16 folder of random weights, and the default
model's GGUF file.

    python benchmarks/serving/bench_loading.py --folder /path/with/room [--shape 1b|8b]
        [--device cpu] [--against DIR] [--out benchmarks/results]

Each load is a process of its own and reads from the page cache, which a first load fills. The rate
is the files' bytes over the seconds of `load_model`, after its libraries are imported. "beside" is
the peak of the process beyond what it had before, less the weights: pages of the mapped files and
whatever the loader holds. --against: the `python` folder of another checkout, measured in turn with
this one. The folder is written on first use and left there.
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
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.results_file import write_results

_PACKAGE = Path(__file__).resolve().parents[2] / "python"
_SHAPES = {
    "1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
}
_SHARD_BYTES = 1 << 30
_CHILD = """
import json, sys, time
import numpy, safetensors, torch, tqdm
from astrai.models import load_model

def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) * 1024

source, device, dtype = sys.argv[1:]
if device != "cpu":
    torch.empty(1, device=device)
before = status("VmRSS")
began = time.perf_counter()
loaded = load_model(None if source == "default" else source, device=device, dtype=dtype,
                    progress=False)
if device != "cpu":
    torch.cuda.synchronize()
seconds = time.perf_counter() - began
on_host = loaded.summary["weight_bytes"] if device == "cpu" else 0
print(json.dumps({"s": seconds, "beside": status("VmHWM") - before - on_host}))
"""


def write_folder(folder: Path, shape: dict[str, object]) -> None:
    """Random weights in shards of about a GiB. Does nothing where they are already there."""
    from astrai.models.config_hf import config_from_hf
    from astrai.models.weights import expected_shapes

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192, **shape}
    (folder / "config.json").write_text(json.dumps(config))
    block = torch.randn(1 << 22).mul_(0.02).to(torch.bfloat16)
    placed: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def flush() -> None:
        file_name = f"model-{len(set(placed.values())) + 1:05}.safetensors"
        save_file(shard, folder / file_name)
        placed.update(dict.fromkeys(shard, file_name))
        shard.clear()

    for name, size in expected_shapes(config_from_hf(config)):
        n = torch.Size(size).numel()
        shard[name] = block.repeat(-(-n // len(block)))[:n].view(size)
        if sum(tensor.nbytes for tensor in shard.values()) >= _SHARD_BYTES:
            flush()
    flush()
    index.write_text(json.dumps({"weight_map": placed}))


def load(package: Path, source: str, device: str, dtype: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-c", _CHILD, source, device, dtype]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shape", choices=_SHAPES, default="1b")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    write_folder(args.folder, _SHAPES[args.shape])
    packages = {"this": _PACKAGE} | ({"before": args.against.resolve()} if args.against else {})
    sources = {f"{args.shape}, bf16 shards": str(args.folder), "default model, Q4_1": "default"}
    rows: list[dict[str, object]] = []
    for name, source in sources.items():
        for dtype in ("bfloat16", "float32"):
            runs: dict[str, list[dict[str, float]]] = {which: [] for which in packages}
            for _ in range(args.rounds + 1):
                for which, package in packages.items():
                    runs[which].append(load(package, source, args.device, dtype))
            n_bytes = stored_bytes(source)
            for which, measured in runs.items():
                times = [run["s"] for run in measured[1:]]  # the first filled the page cache
                median = statistics.median(times)
                beside = max(run["beside"] for run in measured) / 1e6
                rows.append(
                    {
                        "source": name,
                        "dtype": dtype,
                        "checkout": which,
                        "median s": round(median, 2),
                        "best s": round(min(times), 2),
                        "GB/s": round(n_bytes / median / 1e9, 2),
                        "beside MB": round(beside),
                    }
                )
    write_results(
        "loading",
        f"Loading weights to {args.device}",
        "GB/s are bytes of the files; see benchmarks/serving/bench_loading.py.",
        rows,
        args.out,
    )


def stored_bytes(source: str) -> int:
    from astrai.models.default_model import fetch_default_model

    if source == "default":
        return fetch_default_model(progress=False).stat().st_size
    return sum(path.stat().st_size for path in Path(source).glob("*.safetensors"))


if __name__ == "__main__":
    main()
