"""A mixture of experts: which experts a row goes through, and what they make of it together.

Routing follows the families' authors: softmax over all experts in float32, then the best ones, then
the scaling of their weights to a sum of 1 where the family has one. Of equal ones the lower number
is taken. No row's result depends on the other rows beyond what `linear` itself does."""

from __future__ import annotations

from collections.abc import Callable

import torch

from astrai.models.experts_config import ExpertsConfig
from astrai.models.linear import Product, linear

__all__ = [
    "Gate",
    "fits_grouped_products",
    "is_grouped",
    "mix_by_expert",
    "mix_densely",
    "route",
]

_MAX_EXPERTS, _MAX_ACTIVE = 512, 32  # of the kernels that route and sort

# (gate_up [n_rows, 2 n], out) -> [n_rows, n]: `Layers.silu_mul` or `gelu_mul`
Gate = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def route(
    logits: torch.Tensor, n_active: int, norm_topk_prob: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts. logits: [n_rows, n_experts]. Returns (ids int64, weights float32), both
    [n_rows, n_active], the heaviest first."""
    shares = torch.softmax(logits, dim=-1, dtype=torch.float32)
    best, ids = shares.sort(dim=-1, descending=True, stable=True)
    weights, ids = best[:, :n_active], ids[:, :n_active]
    if norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return ids, weights


def fits_grouped_products(n_experts: int, n_active: int, hidden: int, intermediate: int) -> bool:
    """Do the GPU's kernels (`astrai.extension.ops`, moe_*) take a mixture of these sizes?"""
    is_routed = n_experts <= _MAX_EXPERTS and n_active <= _MAX_ACTIVE
    return is_routed and hidden % 8 == 0 and intermediate % 8 == 0


def is_grouped(experts: ExpertsConfig, hidden: int, dtype: torch.dtype) -> bool:
    """Are they grouped products on a GPU, for a model of that hidden size and dtype?"""
    return dtype.itemsize == 2 and fits_grouped_products(
        experts.n_experts, experts.n_active, hidden, experts.intermediate_size
    )


def mix_by_expert(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate: Gate,
    product: Product = linear,
) -> torch.Tensor:
    """The weighted sum of each row's experts, one product for each expert that has rows.

    x: [n_rows, hidden]. ids, weights: [n_rows, n_active], see `route`. gate_up: [n_experts,
    2 intermediate, hidden], gate rows first; down: [n_experts, hidden, intermediate]. Sums in
    float32 by ascending expert. Reads the counts on the host, hence for a CPU. Returns [n_rows,
    hidden] in x's dtype."""
    n_active = ids.shape[1]
    order = ids.flatten().sort(stable=True).indices  # of [n_rows * n_active], by expert, then row
    rows, shares = order // n_active, weights.flatten()[order, None]
    mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    begin = 0
    for expert, n in enumerate(torch.bincount(ids.flatten(), minlength=len(gate_up)).tolist()):
        if n == 0:
            continue
        mine = rows[begin : begin + n]
        gated = gate(product(x.index_select(0, mine), gate_up[expert], None, None), None)
        # Product and sum apart: fused they would round by where in a vector an element lies.
        out = product(gated, down[expert], None, None).float().mul_(shares[begin : begin + n])
        mixed.index_add_(0, mine, out)
        begin += n
    return mixed.to(x.dtype)


def mix_densely(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate: Gate,
) -> torch.Tensor:
    """As `mix_by_expert`, every row through every expert: n_experts / n_active times the work, but
    nothing is read on the host. For what a GPU's grouped products do not take."""
    n_experts = len(gate_up)
    shares = torch.zeros((len(x), n_experts), dtype=torch.float32, device=x.device)
    shares.scatter_(1, ids, weights)
    mixed = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(n_experts):
        out = linear(gate(linear(x, gate_up[expert]), None), down[expert])
        mixed.addcmul_(out.float(), shares[:, expert, None])
    return mixed.to(x.dtype)
