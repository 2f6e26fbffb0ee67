"""Products of tens to hundreds of rows on a GPU, alone and with the sum or gate behind them: error,
time and share of the read ceiling, beside torch (cuBLAS) and torch with the single kernels.

    python benchmarks/kernels/narrow_linear.py --out benchmarks/results --commit HASH

Method: graph_timing.py. Bytes count the weight, x and out once. Each row is checked against float64
on the buffers that are then timed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from graph_timing import arguments, machine, n_sets, write_results
from product_rows import product_row, random_weight
from torch import Tensor

from astrai.extension import ops

ROWS = (17, 32, 48, 64, 96, 128, 192, 256)
# N, K, what the product does in a layer
LAYERS = {
    "qwen0.6b qkv": (4096, 1024, "store"),
    "qwen0.6b o": (1024, 2048, "add"),
    "qwen0.6b gate_up": (6144, 1024, "silu_mul"),
    "qwen0.6b down": (1024, 3072, "add"),
    "llama8b qkv": (6144, 4096, "store"),
    "llama8b o": (4096, 4096, "add"),
    "llama8b gate_up": (28672, 4096, "silu_mul"),
    "llama8b down": (4096, 14336, "add"),
}


class Case:
    """One product for every number of rows, on as many buffer sets as exceed the L2 cache."""

    def __init__(self, n: int, k: int, kind: str) -> None:
        self.n, self.k, self.kind = n, k, kind
        self.weights = [random_weight(n, k) for _ in range(n_sets(2 * n * k))]

    def of(self, n_rows: int) -> None:
        self.n_bytes = 2 * (self.n * self.k + n_rows * (self.k + self.n))
        self.x = torch.randn(n_rows, self.k, device="cuda").bfloat16()
        n_out = self.n // 2 if self.kind == "silu_mul" else self.n
        self.out = self.x.new_zeros(n_rows, n_out)
        self.product = self.x.new_empty(n_rows, self.n)

    def ours(self, weight: Tensor) -> Tensor:
        return ops.narrow_linear(self.x, weight, output=self.kind, out=self.out)  # type: ignore[arg-type]

    def alone(self, weight: Tensor) -> Tensor:
        return ops.narrow_linear(self.x, weight, out=self.product)

    def torch_alone(self, weight: Tensor) -> Tensor:
        return torch.mm(self.x, weight.T, out=self.product)

    def separate(self, weight: Tensor) -> None:
        """The same by a product of torch's and one kernel for what is behind it."""
        torch.mm(self.x, weight.T, out=self.product)
        if self.kind == "silu_mul":
            ops.silu_mul(self.product, self.out)
        elif self.kind == "add":
            self.out.add_(self.product)

    def error(self) -> float:
        expected = self.x.double() @ self.weights[0].double().T
        if self.kind == "silu_mul":
            gate, up = expected.chunk(2, dim=-1)
            expected = F.silu(gate) * up
        self.out.fill_(0.0 if self.kind == "add" else torch.nan)
        actual = self.ours(self.weights[0]).double()
        return ((actual - expected).norm() / expected.norm()).item()


def main() -> None:
    args = arguments(__doc__)
    head = machine(args.commit)
    rows: list[dict[str, object]] = []
    for name, (n, k, kind) in LAYERS.items():
        case = Case(n, k, kind)
        for n_rows in ROWS:
            case.of(n_rows)
            rows.append(product_row(name, n_rows, case, head["read GB/s"]))
        del case
    text = __doc__.split("\n\n")[2]
    write_results("narrow_linear", "Products of some rows", text, head, rows, args.out)


if __name__ == "__main__":
    main()
