"""The matrix products of a decoder layer as a decode step of tens to hundreds of rows runs them.

    python benchmarks/kernels/layer_products.py --out benchmarks/results --commit HASH

Method: graph_timing.py. A graph holds the layers of a model, each with weights of its own: the
four products, the gate, and the two add_rms_norm behind the sums; what stands between qkv and o is
left out. torch: cuBLAS and silu_mul. ours: narrow_linear for all four. chosen: as the decoder does
it, models/narrow_products.py. Microseconds of a layer; each product was checked against float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from graph_timing import arguments, machine, replay_us, write_results
from product_rows import random_weight
from torch import Tensor

from astrai.extension import ops
from astrai.models.linear import linear
from astrai.models.narrow_products import narrow_gate

ROWS = (17, 32, 48, 64, 96, 128, 160, 192, 224, 256)
EPS = 1e-6


class Shape(NamedTuple):
    name: str
    n_layers: int
    hidden: int
    qkv: int
    heads: int  # values of all query heads
    intermediate: int


SHAPES = (
    Shape("qwen0.6b", 24, 1024, 4096, 2048, 3072),
    Shape("llama8b", 6, 4096, 6144, 4096, 14336),
)

Product = Callable[[Tensor, Tensor, Tensor], object]  # x, weight, out


def torch_product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    torch.mm(x, weight.T, out=out)


def torch_gate(x: Tensor, weight: Tensor, out: Tensor) -> None:
    product = x.new_empty(len(x), len(weight))
    torch.mm(x, weight.T, out=product)
    ops.silu_mul(product, out)


def our_product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    ops.narrow_linear(x, weight, out=out)


def our_gate(x: Tensor, weight: Tensor, out: Tensor) -> None:
    ops.narrow_linear(x, weight, output="silu_mul", out=out)


def chosen_product(x: Tensor, weight: Tensor, out: Tensor) -> None:
    linear(x, weight, None, out)


def chosen_gate(x: Tensor, weight: Tensor, out: Tensor) -> None:
    if narrow_gate(x, weight, None, out) is None:
        torch_gate(x, weight, out)


WAYS: dict[str, tuple[Product, Product]] = {
    "torch": (torch_product, torch_gate),
    "ours": (our_product, our_gate),
    "chosen": (chosen_product, chosen_gate),
}


class Layers:
    """Weights of a model's layers, and what they work on for one number of rows."""

    def __init__(self, shape: Shape) -> None:
        hidden, inner = shape.hidden, shape.intermediate
        self.shape, self.norm = shape, torch.randn(hidden, device="cuda").bfloat16()
        self.weights = [
            (
                random_weight(shape.qkv, hidden),
                random_weight(hidden, shape.heads),
                random_weight(2 * inner, hidden),
                random_weight(hidden, inner),
            )
            for _ in range(shape.n_layers)
        ]

    def of(self, n_rows: int) -> None:
        def rows(row_len: int) -> Tensor:
            return torch.randn(n_rows, row_len, device="cuda").bfloat16()

        shape = self.shape
        self.hidden, self.residual = rows(shape.hidden), rows(shape.hidden)
        self.qkv, self.heads = rows(shape.qkv), rows(shape.heads)
        self.added, self.gated = rows(shape.hidden), rows(shape.intermediate)

    def check(self, product: Product, gate: Product) -> None:
        qkv, o, gate_up, down = self.weights[0]
        for x, weight, out in (
            (self.hidden, qkv, self.qkv),
            (self.heads, o, self.added),
            (self.gated, down, self.added),
            (self.hidden, gate_up, self.gated),
        ):
            expected = x.double() @ weight.double().T
            if weight is gate_up:
                gates, ups = expected.chunk(2, dim=-1)
                expected = F.silu(gates) * ups
            out.fill_(torch.nan)
            (gate if weight is gate_up else product)(x, weight, out)
            error = ((out.double() - expected).norm() / expected.norm()).item()
            assert error < 1e-2, f"{self.shape.name}: {list(weight.shape)} is off by {error}"

    def run(self, product: Product, gate: Product) -> None:
        for qkv, o, gate_up, down in self.weights:
            product(self.hidden, qkv, self.qkv)
            product(self.heads, o, self.added)
            ops.add_rms_norm(self.added, self.residual, self.norm, EPS, self.hidden)
            gate(self.hidden, gate_up, self.gated)
            product(self.gated, down, self.added)
            ops.add_rms_norm(self.added, self.residual, self.norm, EPS, self.hidden)


def main() -> None:
    args = arguments(__doc__)
    head = machine(args.commit)
    rows: list[dict[str, object]] = []
    for shape in SHAPES:
        layers = Layers(shape)
        for n_rows in ROWS:
            row: dict[str, object] = {"layer of": shape.name, "rows": n_rows}
            for way, (product, gate) in WAYS.items():
                layers.of(n_rows)
                layers.check(product, gate)
                time = replay_us([partial(layers.run, product, gate)], min_calls=1)
                row[way] = round(time.median / shape.n_layers, 2)
                row[f"{way} p90"] = round(time.p90 / shape.n_layers, 2)
            rows.append(row)
        del layers
    text = __doc__.split("\n\n")[2]
    write_results("layer_products", "The products of a decoder layer", text, head, rows, args.out)


if __name__ == "__main__":
    main()
