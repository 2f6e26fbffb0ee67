"""A mixture of experts on a GPU: error, time, and the ratio to what the card allows.

    python benchmarks/kernels/bench_moe.py --out benchmarks/results --commit HASH

Method: graph_timing.py. A call is routing, sorting, both products and the weighted sum of one
layer; the router's own product is not part of it. The floor is the larger of two times: the bytes
of the experts that got rows, read once at the ceiling of a streaming read, and the products at the
rate of torch's own product of 8192 x 8192 x 8192. Each case is checked against float64 on the
buffers that are then timed, over rows spread through the batch. Beside it stand torch's grouped
product, by the same replay, and one product for each expert, which waits for the counts and is
therefore timed by a clock on the device around calls from Python.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from graph_timing import MIN_CALLS, arguments, machine, n_sets, replay_us, write_results
from moe_peers import by_expert, by_grouped_mm, has_grouped_mm
from torch import Tensor

from astrai.extension import ops

TOKENS = (1, 16, 64, 256, 2048, 8192)
MAX_ERROR = 0.01  # relative, of bfloat16: three roundings of 2^-9
N_CHECKED = 16
PEER_REPEATS = 3
LONG_CALLS = 4  # in a graph, where a call takes milliseconds


@dataclass(frozen=True)
class Layer:
    name: str
    hidden: int
    intermediate: int
    n_experts: int
    n_active: int


LAYERS = (
    Layer("qwen3-30b-a3b", 2048, 768, 128, 8),
    Layer("mixtral-8x7b", 4096, 14336, 8, 2),
)


def layer_weights(layer: Layer) -> tuple[Tensor, Tensor]:
    shape = (layer.n_experts, 2 * layer.intermediate, layer.hidden)
    gate_up = torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(layer.hidden**-0.5)
    shape = (layer.n_experts, layer.hidden, layer.intermediate)
    down = torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(layer.intermediate**-0.5)
    return gate_up, down


def mixture(layer: Layer, x: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    ids, weights = ops.moe_route(logits, layer.n_active, True)
    order, tiles = ops.moe_sort(ids, layer.n_experts)
    gated = ops.moe_gate_up(x, gate_up, order, tiles)
    return ops.moe_combine(ops.moe_down(gated, down, order, tiles), weights)


def error(layer: Layer, x: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor) -> float:
    """Largest relative error of a row's norm, over N_CHECKED rows."""
    out = mixture(layer, x, logits, gate_up, down)
    shares, ids = torch.softmax(logits.double(), 1).sort(dim=1, descending=True, stable=True)
    worst = 0.0
    for row in range(0, len(x), max(1, len(x) // N_CHECKED)):
        chosen = shares[row, : layer.n_active]
        expected = torch.zeros(layer.hidden, dtype=torch.float64, device="cuda")
        for share, expert in zip(chosen / chosen.sum(), ids[row].tolist(), strict=False):
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            expected += share * (down[expert].double() @ (gate * torch.sigmoid(gate) * up))
        difference = (out[row].double() - expected).norm() / expected.norm()
        worst = max(worst, difference.item() if torch.isfinite(difference) else float("inf"))
    return worst


def multiply_tflops() -> float:
    """TFLOP/s of torch's product of square bfloat16 matrices."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    time = replay_us([lambda: torch.mm(a, b, out=out)] * 2)
    return 2 * n**3 / time.median / 1e6


def eager_us(calls: Sequence[Callable[[], object]]) -> float:
    """Median over PEER_REPEATS rounds of the calls, launched from Python."""
    calls[0]()
    times = []
    for _ in range(PEER_REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(times)


def measure(layer: Layer, n_tokens: int, read_gbs: float, tflops: float) -> dict[str, object]:
    expert_bytes = 3 * layer.hidden * layer.intermediate * 2
    # A set has its own routing; sets share the weights where these alone exceed the cache.
    gate_up, down = layer_weights(layer)
    sets = [
        (
            torch.randn(n_tokens, layer.hidden, device="cuda", dtype=torch.bfloat16),
            torch.randn(n_tokens, layer.n_experts, device="cuda", dtype=torch.bfloat16),
        )
        for _ in range(n_sets(layer.n_active * expert_bytes))
    ]
    worst = error(layer, *sets[0], gate_up, down)
    if not worst <= MAX_ERROR:
        raise RuntimeError(f"{layer.name} at {n_tokens} tokens: relative error {worst:.3g}")
    routes = [ops.moe_route(logits, layer.n_active, True)[0] for _, logits in sets]
    touched = [len(set(ids.flatten().tolist())) for ids in routes]
    n_touched = sum(touched) / len(touched)
    min_calls = MIN_CALLS if n_tokens < 2048 else LONG_CALLS
    ours = [partial(mixture, layer, x, logits, gate_up, down) for x, logits in sets]
    time = replay_us(ours, min_calls=min_calls)
    peer_args = [(x, logits, layer.n_active, gate_up, down) for x, logits in sets[:4]]
    loop_us = eager_us([partial(by_expert, *args) for args in peer_args])
    grouped_us: float | None = None
    if has_grouped_mm():
        peers = [partial(by_grouped_mm, *args) for args in peer_args]
        grouped_us = replay_us(peers, PEER_REPEATS, min_calls).median
    read_us = n_touched * expert_bytes / read_gbs / 1e3
    flops = 2 * n_tokens * layer.n_active * 3 * layer.hidden * layer.intermediate
    multiply_us = flops / tflops / 1e6
    floor = max(read_us, multiply_us)
    return {
        "layer": layer.name,
        "tokens": n_tokens,
        "experts touched": round(n_touched, 1),
        "error": float(f"{worst:.2g}"),
        "us": round(time.median, 1),
        "p10": round(time.p10, 1),
        "p90": round(time.p90, 1),
        "floor us": round(floor, 1),
        "bound by": "reading" if read_us >= multiply_us else "multiplying",
        "times the floor": round(time.median / floor, 2),
        "torch grouped_mm us": "none" if grouped_us is None else round(grouped_us, 1),
        "torch loop us": round(loop_us, 1),
    }


def main() -> None:
    args = arguments(__doc__.splitlines()[0])
    torch.manual_seed(0)
    head = machine(args.commit)
    read_gbs, tflops = float(str(head["read GB/s"])), multiply_tflops()
    print(head, round(tflops), flush=True)  # and each row, so that an interrupted run leaves some
    rows = []
    for layer in LAYERS:
        for n_tokens in TOKENS:
            rows.append(measure(layer, n_tokens, read_gbs, tflops))
            print(rows[-1], flush=True)
    write_results(
        "moe",
        "A mixture of experts on the GPU",
        "One layer without the router's own product, logits normal; microseconds a call by graph "
        "replay over rotating rows and routings. The floor is the larger of reading the experts "
        "that got rows once and of multiplying at the rate of torch's square product.",
        {**head, "multiply TFLOP/s": round(tflops)},
        rows,
        args.out,
    )


if __name__ == "__main__":
    main()
