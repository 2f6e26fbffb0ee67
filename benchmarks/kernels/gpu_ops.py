"""rotary_emb and store_kv on a GPU: error against float64, time per call, bandwidth, torch.

    python benchmarks/kernels/gpu_ops.py --out benchmarks/results --commit HASH

Needs torch and an astrai built with CUDA. Times are CUDA events around CALLS launches in a row,
divided by CALLS: the median of REPEATS such times after WARM_UPS, and their 10th and 90th
percentile.
Bytes count every element read and written once; the copy bandwidth is that of a torch copy of
1 GiB in the same run, read and written bytes together.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops

WARM_UPS, REPEATS, CALLS = 10, 40, 20
SEED = 0

# (name, heads, head_dim) x tokens: a small model's decode batch to a large model's prefill.
HEADS = (("SmolLM2-135M q", 9, 64), ("Llama-3-8B q", 32, 128), ("Llama-3-8B kv", 8, 128))
TOKENS = (1, 64, 8192)


def call_us(call: Callable[[], object]) -> tuple[float, float, float]:
    """(median, 10th, 90th percentile) microseconds per call."""
    for _ in range(WARM_UPS):
        call()
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / CALLS)
    deciles = statistics.quantiles(times, n=10)
    return statistics.median(times), deciles[0], deciles[-1]


def copy_bandwidth() -> float:
    """GB/s of a device-to-device copy, read and written bytes together."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    median_us, _, _ = call_us(lambda: target.copy_(source))
    return 2 * source.numel() / median_us / 1000


def row(
    op: str,
    shape: str,
    dtype: torch.dtype,
    max_error: float,
    n_bytes: int,
    kernel: Callable[[], object],
    baseline: Callable[[], object],
    copy_gb_s: float,
) -> dict[str, object]:
    median, low, high = call_us(kernel)
    torch_us, _, _ = call_us(baseline)
    gb_s = n_bytes / median / 1000
    return {
        "op": op,
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
        "max error": f"{max_error:.2e}",
        "us": round(median, 2),
        "p10": round(low, 2),
        "p90": round(high, 2),
        "GB/s": round(gb_s),
        "of copy": f"{gb_s / copy_gb_s:.0%}",
        "torch us": round(torch_us, 2),
        "torch / ours": round(torch_us / median, 1),
    }


def rotary_table(n_tokens: int, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cuda") / head_dim
    positions = torch.arange(n_tokens, dtype=torch.float64, device="cuda")
    angles = positions[:, None] * 10000.0**-exponents
    return torch.stack([angles.cos(), angles.sin()], dim=-1).float()


def torch_rotary(x: Tensor, freqs: Tensor) -> Tensor:
    """The complex product that torch users write."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = pairs * torch.view_as_complex(freqs)[:, None]
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def float64_rotary(x: Tensor, freqs: Tensor) -> Tensor:
    even, odd = x[..., 0::2].double(), x[..., 1::2].double()
    cosine, sine = freqs[:, None, :, 0].double(), freqs[:, None, :, 1].double()
    turned = [even * cosine - odd * sine, even * sine + odd * cosine]
    return torch.stack(turned, dim=-1).flatten(-2)


def measure_rotary(
    n_tokens: int, n_heads: int, head_dim: int, dtype: torch.dtype, name: str, copy_gb_s: float
) -> dict[str, object]:
    x = torch.randn(n_tokens, n_heads, head_dim, device="cuda").to(dtype)
    freqs = rotary_table(n_tokens, head_dim)
    out = torch.empty_like(x)
    ops.rotary_emb(x, freqs, out=out)
    error = (out.double() - float64_rotary(x, freqs)).abs().max().item()
    n_bytes = 2 * x.numel() * x.element_size() + freqs.numel() * freqs.element_size()
    return row(
        "rotary_emb",
        f"{name} [{n_tokens}, {n_heads}, {head_dim}]",
        dtype,
        error,
        n_bytes,
        lambda: ops.rotary_emb(x, freqs, out=out),
        lambda: torch_rotary(x, freqs),
        copy_gb_s,
    )


def measure_store_kv(
    n_tokens: int, n_heads: int, head_dim: int, dtype: torch.dtype, name: str, copy_gb_s: float
) -> dict[str, object]:
    k = torch.randn(n_tokens, n_heads, head_dim, device="cuda").to(dtype)
    v = torch.randn_like(k)
    n_slots = 4 * n_tokens + 1
    k_cache = torch.zeros(n_slots, n_heads, head_dim, dtype=dtype, device="cuda")
    v_cache = torch.zeros_like(k_cache)
    slots = torch.randperm(n_slots, device="cuda")[:n_tokens].int()
    wide_slots = slots.long()
    ops.store_kv(k, v, k_cache, v_cache, slots)
    error = max(
        (cache[wide_slots].double() - rows.double()).abs().max().item()
        for cache, rows in ((k_cache, k), (v_cache, v))
    )

    def by_torch() -> None:
        k_cache[wide_slots] = k
        v_cache[wide_slots] = v

    return row(
        "store_kv",
        f"{name} [{n_tokens}, {n_heads}, {head_dim}]",
        dtype,
        error,
        4 * k.numel() * k.element_size() + 4 * n_tokens,
        lambda: ops.store_kv(k, v, k_cache, v_cache, slots),
        by_torch,
        copy_gb_s,
    )


def machine(commit: str, copy_gb_s: float) -> dict[str, object]:
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,clocks.sm,clocks.mem",
        "--format=csv,noheader",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        answer = "unknown, unknown, unknown"
    driver, sm_clock, memory_clock = (part.strip() for part in answer.splitlines()[0].split(","))
    return {
        "card": torch.cuda.get_device_name(),
        "driver": driver,
        "clocks": f"SM {sm_clock}, memory {memory_clock}",
        "CUDA": torch.version.cuda,
        "torch": torch.__version__,
        "kernels": _C.CUDA_REASON.split(" at ")[0] + " for " + ", ".join(_C.cuda_archs()),
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "copy GB/s": round(copy_gb_s),
        "warm-ups": WARM_UPS,
        "repeats": REPEATS,
        "calls a repeat": CALLS,
    }


def markdown(head: dict[str, object], rows: list[dict[str, object]]) -> str:
    columns = list(rows[0])
    lines = ["# GPU operations: rotary_emb and store_kv", ""]
    lines += [", ".join(f"{key} {value}" for key, value in head.items()) + ".", ""]
    lines += [
        "Times are per call by CUDA events; at few tokens they are the launch, not the kernel.",
        "",
    ]
    lines += ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    lines += ["| " + " | ".join(str(one[column]) for column in columns) + " |" for one in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu_ops.json and .md")
    parser.add_argument("--commit", required=True)
    options = parser.parse_args()
    torch.manual_seed(SEED)

    copy_gb_s = copy_bandwidth()
    rows = []
    for name, n_heads, head_dim in HEADS:
        measure = measure_store_kv if name.endswith("kv") else measure_rotary
        for n_tokens in TOKENS:
            for dtype in (torch.bfloat16, torch.float16):
                rows.append(measure(n_tokens, n_heads, head_dim, dtype, name, copy_gb_s))
    head = machine(options.commit, copy_gb_s)
    text = markdown(head, rows)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_ops.md").write_text(text)
    result = json.dumps({"machine": head, "rows": rows}, indent=1)
    (options.out / "gpu_ops.json").write_text(result + "\n")


if __name__ == "__main__":
    main()
