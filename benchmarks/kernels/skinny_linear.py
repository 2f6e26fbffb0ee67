"""Products of few rows on a GPU, alone and with the norm, sum or gate beside them: error, time and
share of the read ceiling, beside torch (cuBLAS) and what torch and the single kernels take.

    python benchmarks/kernels/skinny_linear.py --out benchmarks/results --commit HASH

Method: graph_timing.py. Bytes count the weight, x and out once. Each row is checked against float64
on the buffers that are then timed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from graph_timing import arguments, machine, n_sets, write_results
from product_rows import product_row, random_weight
from torch import Tensor

from astrai import _C
from astrai.extension import ops

EPS = 1e-6
ROWS = (1, 2, 4, 8, 16)
# N, K, what the product does in a layer
LAYERS = {
    "qwen0.6b qkv": (4096, 1024, "norm"),
    "qwen0.6b o": (1024, 2048, "add"),
    "qwen0.6b gate_up": (6144, 1024, "norm, silu_mul"),
    "qwen0.6b down": (1024, 3072, "add"),
    "qwen0.6b head": (151936, 1024, "store"),
    "llama8b qkv": (6144, 4096, "norm"),
    "llama8b o": (4096, 4096, "add"),
    "llama8b gate_up": (28672, 4096, "norm, silu_mul"),
    "llama8b down": (4096, 14336, "add"),
    "llama8b head": (128256, 4096, "store"),
}


class Case:
    """One product on as many buffer sets as exceed the L2 cache."""

    def __init__(self, n: int, k: int, kind: str, n_rows: int) -> None:
        self.kind = kind
        self.n_bytes = 2 * (n * k + n_rows * (k + n))
        self.weights = [random_weight(n, k) for _ in range(n_sets(self.n_bytes))]
        self.x = torch.randn(n_rows, k, device="cuda").bfloat16()
        self.norm = torch.randn(k, device="cuda").bfloat16()
        self.n_out = n // 2 if "silu_mul" in kind else n
        self.out = self.x.new_zeros(n_rows, self.n_out)
        self.product = self.x.new_empty(n_rows, n)
        self.normed = torch.empty_like(self.x)

    def ours(self, weight: Tensor) -> Tensor:
        output = {"add": "add", "norm, silu_mul": "silu_mul"}.get(self.kind, "store")
        norm = self.norm if "norm" in self.kind else None
        return ops.skinny_linear(
            self.x, weight, norm_weight=norm, eps=EPS, output=output, out=self.out
        )

    def alone(self, weight: Tensor) -> Tensor:
        return ops.skinny_linear(self.x, weight, out=self.product)

    def torch_alone(self, weight: Tensor) -> Tensor:
        return torch.mm(self.x, weight.T, out=self.product)

    def separate(self, weight: Tensor) -> None:
        """The same by a product of torch's and one kernel for each of the rest."""
        x = ops.rms_norm(self.x, self.norm, EPS, self.normed) if "norm" in self.kind else self.x
        torch.mm(x, weight.T, out=self.product)
        if "silu_mul" in self.kind:
            ops.silu_mul(self.product, self.out)
        elif self.kind == "add":
            self.out.add_(self.product)

    def error(self) -> float:
        weight = self.weights[0]
        x = ops.rms_norm(self.x, self.norm, EPS) if "norm" in self.kind else self.x
        expected = x.double() @ weight.double().T
        if "silu_mul" in self.kind:
            gate, up = expected.chunk(2, dim=-1)
            expected = F.silu(gate) * up
        self.out.zero_()
        actual = self.ours(weight).double()
        return ((actual - expected).norm() / expected.norm()).item()


def main() -> None:
    args = arguments(__doc__)
    head = machine(args.commit)
    rows: list[dict[str, object]] = []
    for name, (n, k, kind) in LAYERS.items():
        for n_rows in ROWS:
            if n_rows > _C.skinny_linear_max_rows(k):
                continue
            case = Case(n, k, kind, n_rows)
            rows.append(product_row(name, n_rows, case, head["read GB/s"]))
    write_results(
        "skinny_linear", "Products of few rows", __doc__.split("\n\n")[2], head, rows, args.out
    )


if __name__ == "__main__":
    main()
