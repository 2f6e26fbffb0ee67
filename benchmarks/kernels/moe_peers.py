"""A mixture of experts by torch alone, for bench_moe.py: what it takes without kernels of its own.

Both take what `bench_moe.mixture` takes, logits [n_rows, n_experts] among it, and give the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from astrai.models.experts import mix_by_expert, route

__all__ = ["by_expert", "by_grouped_mm", "has_grouped_mm"]


def _silu_mul(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    gate, up = gate_up.chunk(2, dim=1)
    return F.silu(gate) * up


def by_expert(x: Tensor, logits: Tensor, n_active: int, gate_up: Tensor, down: Tensor) -> Tensor:
    """One product for each expert with rows; their counts are read on the host."""
    ids, weights = route(logits, n_active, norm_topk_prob=True)
    return mix_by_expert(x, ids, weights, gate_up, down, _silu_mul)


def has_grouped_mm() -> bool:
    return hasattr(F, "grouped_mm")


def by_grouped_mm(
    x: Tensor, logits: Tensor, n_active: int, gate_up: Tensor, down: Tensor
) -> Tensor:
    """torch's grouped product over rows that are gathered by expert; nothing waits."""
    weights, ids = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(n_active, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    order = ids.flatten().argsort()
    experts = torch.arange(len(gate_up), device=x.device)
    ends = torch.searchsorted(ids.flatten()[order], experts, right=True).int()
    rows = x.index_select(0, order // n_active)
    gated = _silu_mul(F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends))
    parts = F.grouped_mm(gated, down.transpose(1, 2), offs=ends).float()
    parts.mul_(weights.flatten()[order, None])
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return out.index_add_(0, order // n_active, parts).to(x.dtype)
