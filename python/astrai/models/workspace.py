"""`Workspace`: where one forward over few rows on a CPU keeps its intermediate values.

A layer's operations are so short there that allocating their results would be a good part of them,
so all layers write to the same few buffers. Elsewhere every field is None, and operations allocate.
Belongs to one forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from astrai.models.config import ModelConfig
from astrai.models.linear import has_cpu_product

__all__ = ["Workspace"]


@dataclass(frozen=True, slots=True)
class Workspace:
    """Buffers of [n_rows, n], each free again once the operation that reads it is done."""

    normed: torch.Tensor | None = None  # n = hidden_size: what projections read
    hidden: torch.Tensor | None = None  # n = hidden_size: what projections add to the residual
    qkv: torch.Tensor | None = None  # n = (n_heads + 2 n_kv_heads) * head_dim
    gate_up: torch.Tensor | None = None  # n = 2 * intermediate_size
    gated: torch.Tensor | None = None  # n = intermediate_size

    @staticmethod
    def of(config: ModelConfig, x: torch.Tensor) -> Workspace:
        """x: [n_rows, hidden_size], the rows that enter the layers."""
        if not has_cpu_product(x):
            return Workspace()
        n_rows = x.shape[0]
        n_qkv = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        return Workspace(
            normed=torch.empty_like(x),
            hidden=torch.empty_like(x),
            qkv=x.new_empty((n_rows, n_qkv)),
            gate_up=x.new_empty((n_rows, 2 * config.intermediate_size)),
            gated=x.new_empty((n_rows, config.intermediate_size)),
        )
