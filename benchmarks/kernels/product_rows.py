"""What the tables of products have in common: weights, and a product as a row of its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from graph_timing import replay_us
from torch import Tensor

__all__ = ["ProductCase", "product_row", "random_weight"]


class ProductCase(Protocol):
    """One product on as many weights as exceed the L2 cache."""

    kind: str  # what is joined with it
    n_bytes: int  # of a call: the weight, x and out once
    weights: list[Tensor]

    def ours(self, weight: Tensor) -> object:
        """The product with what is joined."""

    def alone(self, weight: Tensor) -> object:
        """Our product with nothing joined."""

    def torch_alone(self, weight: Tensor) -> object:
        """torch's product."""

    def separate(self, weight: Tensor) -> object:
        """torch's product and one kernel for each of the rest."""

    def error(self) -> float:
        """Of `ours` on the first weight, relative to float64."""


def random_weight(*shape: int) -> Tensor:
    return (torch.randn(shape, device="cuda") / shape[-1] ** 0.5).bfloat16()


def product_row(name: str, n_rows: int, case: ProductCase, read_rate: object) -> dict[str, object]:
    """Checks, then times. read_rate: GB/s of a plain sum, `graph_timing.ceilings`."""
    error = case.error()
    assert error < 1e-2, f"{name} of {n_rows} rows is off by {error}"
    ours, alone, theirs, separate = (
        replay_us(_on_each(function, case.weights))
        for function in (case.ours, case.alone, case.torch_alone, case.separate)
    )
    rate = case.n_bytes / ours.median / 1000
    return {
        "product": name,
        "rows": n_rows,
        "with": case.kind,
        "error": f"{error:.1e}",
        "us": round(ours.median, 2),
        "p10": round(ours.p10, 2),
        "p90": round(ours.p90, 2),
        "GB/s": round(rate),
        "of read": f"{rate / int(read_rate):.2f}",  # type: ignore[call-overload]
        "alone us": round(alone.median, 2),
        "torch alone us": round(theirs.median, 2),
        "torch and kernels us": round(separate.median, 2),
    }


def _on_each(
    function: Callable[[Tensor], object], weights: list[Tensor]
) -> list[Callable[[], object]]:
    return [lambda weight=weight: function(weight) for weight in weights]  # type: ignore[misc]
