"""The MLP of a decoder layer: one gated MLP, or a mixture of them.

Both are called alike, so the decoder does not know which layers have experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from astrai.models.experts import Gate
from astrai.models.layers import Layers
from astrai.models.linear import Linear
from astrai.models.workspace import Workspace

__all__ = ["GatedMLP", "SparseMLP"]


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(gate(gate_up(x)))."""

    gate_up: Linear  # rows: intermediate gate, intermediate up
    down: Linear

    def __call__(self, x: torch.Tensor, ops: Layers, gate: Gate, space: Workspace) -> torch.Tensor:
        """x: [n_rows, hidden]. gate: the family's activation, one of ops. Returns the same shape,
        in space.hidden where there is one."""
        gated = ops.gate_linear(x, self.gate_up, gate, space)
        return self.down(gated, space.hidden)

    def tensors(self) -> list[torch.Tensor]:
        """Every weight."""
        return [*self.gate_up.tensors(), *self.down.tensors()]


@dataclass(frozen=True, slots=True)
class SparseMLP:
    """A mixture of experts, and the expert that all rows go through where there is one."""

    router: Linear  # rows: n_experts
    gate_up: torch.Tensor  # [n_experts, 2 intermediate, hidden], gate rows first
    down: torch.Tensor  # [n_experts, hidden, intermediate]
    n_active: int  # experts of a row
    norm_topk_prob: bool  # do their weights sum to 1
    shared: GatedMLP | None = None
    shared_gate: Linear | None = None  # one row: how much of the shared expert a row takes

    def __call__(self, x: torch.Tensor, ops: Layers, gate: Gate, space: Workspace) -> torch.Tensor:
        """As `GatedMLP`."""
        ids, weights = ops.route(self.router(x), self.n_active, self.norm_topk_prob)
        mixed = ops.mix_experts(x, ids, weights, self.gate_up, self.down, gate, space)
        if self.shared is None or self.shared_gate is None:
            return mixed
        # The sigmoid as a softmax over (logit, 0), which works row by row: torch's own rounds by
        # where in a vector an element lies, so by who shares the batch.
        logits = torch.nn.functional.pad(self.shared_gate(x), (0, 1))
        share = torch.softmax(logits, dim=-1)[:, :1]
        return mixed.add_(self.shared(x, ops, gate, Workspace()).mul_(share))

    def tensors(self) -> list[torch.Tensor]:
        """Every weight."""
        found = [*self.router.tensors(), self.gate_up, self.down]
        if self.shared is not None and self.shared_gate is not None:
            found += [*self.shared.tensors(), *self.shared_gate.tensors()]
        return found
