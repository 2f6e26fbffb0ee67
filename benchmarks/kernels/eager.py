"""What an eager call of each operation costs the host, apart from its launch.

    python benchmarks/kernels/eager.py --out benchmarks/results --commit HASH

A call without rows does all that a call does but launch: Python wrapper, binding and checks.
`wrapper` is the time of that call with every output given, `allocating` what leaving them out adds,
`launch` what one row adds, `call` their sum for an operation that makes its own outputs. Times are
the host's: the median over REPEATS of CALLS calls in a row; the device ends them before the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from graph_timing import arguments, machine, write_results
from torch import Tensor

from astrai.extension import ops

CALLS, REPEATS, WARM_UPS = 200, 15, 3
TARGET_US = 6.0
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCAB = 32, 8, 128, 4096, 151936

Call = Callable[..., object]


def host_us(call: Callable[[], object]) -> float:
    times = []
    for repeat in range(WARM_UPS + REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        end = time.perf_counter()
        torch.cuda.synchronize()
        if repeat >= WARM_UPS:
            times.append((end - start) / CALLS * 1e6)
    return statistics.median(times)


def half(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def elementwise(n: int) -> dict[str, tuple[Call, dict[str, Tensor]]]:
    """Operation -> (call on n rows, its outputs)."""
    x, weight = half(n, HIDDEN), half(HIDDEN)
    out, residual = torch.empty_like(x), half(n, HIDDEN)
    gate_up, table = half(n, 2 * HIDDEN), half(1000, HIDDEN)
    ids = torch.zeros(n, dtype=torch.int64, device="cuda")
    return {
        "rms_norm": (partial(ops.rms_norm, x, weight, 1e-5), {"out": out}),
        "add_rms_norm": (partial(ops.add_rms_norm, x, residual, weight, 1e-5), {"out": out}),
        "silu_mul": (partial(ops.silu_mul, gate_up), {"out": out}),
        "gelu_mul": (partial(ops.gelu_mul, gate_up), {"out": out}),
        "embedding": (partial(ops.embedding, ids, table), {"out": out}),
    }


def attention_steps(n: int) -> dict[str, tuple[Call, dict[str, Tensor]]]:
    q, k, v = half(n, HEADS, HEAD_DIM), half(n, KV_HEADS, HEAD_DIM), half(n, KV_HEADS, HEAD_DIM)
    freqs = torch.rand(n, HEAD_DIM // 2, 2, device="cuda")
    k_cache, v_cache = half(64, KV_HEADS, HEAD_DIM), half(64, KV_HEADS, HEAD_DIM)
    slots, norm, out = ints(*range(n)), half(HEAD_DIM), torch.empty_like(q)
    table, rows, indptr = ints(*range(64)).view(1, 64), ints(*[0] * n), ints(*range(n + 1))
    caches = (k_cache, v_cache)
    paged = (q, *caches, table, rows, indptr)
    workspace = {
        "o_part_buf": torch.empty(8, HEADS, HEAD_DIM, device="cuda"),
        "ml_part_buf": torch.empty(8, HEADS, 2, device="cuda"),
        "split_indptr": indptr,
        "out_buf": out,
    }
    decode = partial(ops.attn_paged_decode, *paged, new_k=k, new_v=v)
    tiles = (indptr, ints(*[0] * n), ints(*[0] * n))
    prefill = partial(ops.attn_paged_prefill, *paged, *tiles, is_causal=True)
    fused = partial(ops.rotary_store_kv, q, k, v, freqs, *caches, slots)
    return {
        "rotary_emb": (partial(ops.rotary_emb, q, freqs), {"out": out}),
        "store_kv": (partial(ops.store_kv, k, v, *caches, slots), {}),
        "rotary_store_kv": (fused, {"q_out": out}),
        "norm + rotary_store_kv": (partial(fused, q_norm=norm, k_norm=norm), {"q_out": out}),
        "attn_paged_decode": (decode, workspace),
        "attn_paged_prefill": (prefill, {"out": out}),
    }


def sampling(n: int) -> dict[str, tuple[Call, dict[str, Tensor]]]:
    logits = torch.randn(n, VOCAB, device="cuda")
    one, zero = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
    long = torch.zeros(n, dtype=torch.int64, device="cuda")
    parameters = (one, ints(*[50] * n), one, zero, long, long)
    narrow = partial(ops.sample, logits, *parameters, has_wide_rows=False)
    edits = ops.LogitEdits(
        ints(*[0] * (n + 1)), ints(), one[:0], one[:0], torch.ones(n, 3, device="cuda")
    )
    outputs = {
        "token_ids": long.clone(),
        "is_faulty": torch.empty(n, dtype=torch.bool, device="cuda"),
        "workspace": torch.empty(
            max(ops.sample_workspace_bytes(n, VOCAB), 16), dtype=torch.uint8, device="cuda"
        ),
    }
    top_outputs = {
        "chosen": one.clone(),
        "top_ids": torch.empty(n, 5, dtype=torch.int32, device="cuda"),
        "logprobs": torch.empty(n, 5, device="cuda"),
        "workspace": torch.empty(
            max(ops.top_logprobs_workspace_bytes(n, VOCAB), 16), dtype=torch.uint8, device="cuda"
        ),
    }
    return {
        "sample, 2 launches": (narrow, outputs),
        "sample with edits, 2 launches": (partial(narrow, edits=edits), outputs),
        "top_logprobs, 2 launches": (partial(ops.top_logprobs, logits, long, 5), top_outputs),
    }


def measure(
    make: Callable[[int], dict[str, tuple[Call, dict[str, Tensor]]]],
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    without_rows = make(0)
    for op, (call, outputs) in make(1).items():
        empty_call, empty_outputs = without_rows[op]
        wrapper = host_us(partial(empty_call, **empty_outputs))
        allocating = host_us(empty_call) - wrapper if outputs else 0.0
        launch = host_us(partial(call, **outputs)) - wrapper
        rows.append(
            {
                "op": op,
                "wrapper us": round(wrapper, 2),
                "allocating us": round(allocating, 2),
                "launch us": round(launch, 2),
                "call us": round(wrapper + allocating + launch, 2),
                "target": f"{TARGET_US:.0f} {'met' if wrapper <= TARGET_US else 'missed'}",
            }
        )
    return rows


def main() -> None:
    options = arguments(__doc__)
    torch.manual_seed(0)
    rows = [row for make in (elementwise, attention_steps, sampling) for row in measure(make)]
    write_results(
        "eager",
        "Host time of eager GPU operations",
        "Microseconds of the host. `wrapper`: Python, binding and checks, all but the launch, with"
        " the outputs given; `allocating`: what leaving them out adds; `launch`: the rest. The"
        " target is for `wrapper`.",
        machine(options.commit),
        rows,
        options.out,
    )


if __name__ == "__main__":
    main()
