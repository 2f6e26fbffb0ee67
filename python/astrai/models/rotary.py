"""`RotaryEmbedding`: the cos/sin table of a model and its lookup by position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from astrai.models.rope import RopeConfig, cos_sin_table

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(nn.Module):
    """Interleaved rotary table, float32 whatever the model's dtype.

    freqs_cis: float32 [n, rotary_dim / 2, 2], the pairs (cos, sin). Where texts longer than
    switch_len tokens have frequencies of their own, theirs follow behind:

        rows 0 .. switch_len - 1               positions of a text of up to switch_len tokens
        rows switch_len .. switch_len + max_len - 1          positions of a longer text
    """

    freqs_cis: torch.Tensor

    def __init__(
        self,
        head_dim: int,
        max_len: int,
        rope: RopeConfig | None = None,
        max_position_embeddings: int | None = None,
        device: torch.device | str = "cpu",
        switch_len: int | None = None,
    ) -> None:
        """head_dim: even. max_len: tokens of the longest text. max_position_embeddings: the model's
        trained context, max_len when not given. switch_len: that of the model's other table, where
        this one has none of its own. The attribute is None where no text can be longer."""
        super().__init__()
        rope, context = rope or RopeConfig(), max_position_embeddings or max_len
        switch_len = rope.switch_len(context) or switch_len
        self.max_len = max_len
        self.switch_len = switch_len if switch_len is not None and switch_len < max_len else None
        if self.switch_len is None:
            table = cos_sin_table(rope, head_dim, context, max_len)
        else:
            short = cos_sin_table(rope, head_dim, context, self.switch_len)
            long = cos_sin_table(rope, head_dim, context, max_len, text_len=max_len)
            table = torch.cat((short, long))
        self.register_buffer("freqs_cis", table.to(device), persistent=False)

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """position_ids: rows of the table, integers of any shape. Returns
        [*shape, rotary_dim / 2, 2]: [total_q, ...] for packed positions, [batch, seq_len, ...] for
        two-dimensional ones."""
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
