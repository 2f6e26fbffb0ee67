"""`Workspace`: where a forward keeps its intermediate values, when all layers share the buffers.

Over few rows on a CPU a layer's operations are so short that allocating their results would be a
good part of them; a captured graph needs what it passes on at fixed addresses. Elsewhere every
field is None, and operations allocate. Belongs to one forward at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from astrai.models.config import ModelConfig
from astrai.models.experts import is_grouped
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
    residual: torch.Tensor | None = None  # n = hidden_size: what enters the layers
    # Of the grouped products of experts, where the model has them.
    pair_gated: torch.Tensor | None = None  # n = n_active * the experts' intermediate_size
    parts: torch.Tensor | None = None  # n = n_active * hidden_size

    @staticmethod
    def of(config: ModelConfig, x: torch.Tensor) -> Workspace:
        """x: [n_rows, hidden_size], the rows that enter the layers."""
        return Workspace.like(config, x) if has_cpu_product(x) else Workspace()

    @staticmethod
    def like(config: ModelConfig, x: torch.Tensor) -> Workspace:
        """All buffers for as many rows as x, which becomes the residual."""
        n_rows = x.shape[0]
        n_qkv = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        pair_gated = parts = None
        experts = config.experts
        if experts is not None and x.is_cuda and is_grouped(experts, config.hidden_size, x.dtype):
            pair_gated = x.new_empty((n_rows, experts.n_active * experts.intermediate_size))
            parts = x.new_empty((n_rows, experts.n_active * config.hidden_size))
        return Workspace(
            normed=torch.empty_like(x),
            hidden=torch.empty_like(x),
            qkv=x.new_empty((n_rows, n_qkv)),
            gate_up=x.new_empty((n_rows, 2 * config.intermediate_size)),
            gated=x.new_empty((n_rows, config.intermediate_size)),
            residual=x,
            pair_gated=pair_gated,
            parts=parts,
        )

    def first(self, n_rows: int) -> Workspace:
        """The first rows of every buffer."""
        cut = {
            field.name: None if buffer is None else buffer[:n_rows]
            for field in fields(self)
            for buffer in [getattr(self, field.name)]
        }
        return Workspace(**cut)
