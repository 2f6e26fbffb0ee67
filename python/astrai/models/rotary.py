"""`RotaryEmbedding`: the cos/sin table of a model and its lookup by position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from astrai.models.rope import RopeConfig, cos_sin_table

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(nn.Module):
    """Interleaved rotary table, float32 whatever the model's dtype.

    freqs_cis: float32 [max_len, rotary_dim / 2, 2], the pairs (cos, sin)."""

    freqs_cis: torch.Tensor

    def __init__(
        self,
        head_dim: int,
        max_len: int,
        rope: RopeConfig | None = None,
        max_position_embeddings: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """head_dim: even. max_len: positions in the table. max_position_embeddings: the model's
        trained context, max_len when not given."""
        super().__init__()
        table = cos_sin_table(
            rope or RopeConfig(), head_dim, max_position_embeddings or max_len, max_len
        )
        self.register_buffer("freqs_cis", table.to(device), persistent=False)

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """position_ids: integers of any shape below max_len. Returns [*shape, rotary_dim / 2, 2]:
        [total_q, ...] for packed positions, [batch, seq_len, ...] for two-dimensional ones."""
        if position_ids.dim() == 1:
            return self.freqs_cis.index_select(0, position_ids)
        return self.freqs_cis[position_ids]

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> RotaryEmbedding:
        # Module.to(dtype) and .half() pass through here: follow the device, keep float32.
        table = self.freqs_cis
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self.freqs_cis.dtype != torch.float32:
            self.freqs_cis = table.to(self.freqs_cis.device)
        return self
