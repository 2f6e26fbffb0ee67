"""The tensors of experts in a checkpoint, and where each goes in the fused ones of a layer.

Files hold them in one of three layouts, told apart by their names: each expert by itself (published
Hugging Face folders, old GGUF files), all experts of a projection as one (GGUF), all of gate and up
as one (transformers 5)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from astrai.models.config import ModelConfig
from astrai.models.experts_config import ExpertsConfig
from astrai.models.families import ExpertNames

__all__ = ["ExpertPart", "expert_parts", "expert_shapes", "router_sizes"]


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One tensor of a file: `target[expert, rows]`, or `target[:, rows]` of all experts."""

    name: str
    shape: tuple[int, ...]
    target: Literal["gate_up", "down"]
    rows: slice
    expert: int | None = None


def expert_shapes(config: ModelConfig, experts: ExpertsConfig) -> dict[str, tuple[int, int, int]]:
    """Shapes of the fused tensors of a layer."""
    n, size, hidden = experts.n_experts, experts.intermediate_size, config.hidden_size
    return {"gate_up": (n, 2 * size, hidden), "down": (n, hidden, size)}


def expert_parts(
    config: ModelConfig,
    experts: ExpertsConfig,
    names: ExpertNames,
    prefix: str,
    present: Collection[str],
) -> list[ExpertPart]:
    """What a layer's experts are made of. prefix: of the layer; present: the checkpoint's tensors,
    which decide the layout."""
    n, size, hidden = experts.n_experts, experts.intermediate_size, config.hidden_size
    module = f"{prefix}{names.experts}"
    gate, up, every = slice(size), slice(size, 2 * size), slice(None)
    if f"{module}.down_proj" in present:
        return [
            ExpertPart(f"{module}.gate_up_proj", (n, 2 * size, hidden), "gate_up", every),
            ExpertPart(f"{module}.down_proj", (n, hidden, size), "down", every),
        ]
    if f"{module}.{names.down}.weight" in present:
        return [
            ExpertPart(f"{module}.{names.gate}.weight", (n, size, hidden), "gate_up", gate),
            ExpertPart(f"{module}.{names.up}.weight", (n, size, hidden), "gate_up", up),
            ExpertPart(f"{module}.{names.down}.weight", (n, hidden, size), "down", every),
        ]
    parts = []
    for i in range(n):
        expert = f"{module}.{i}"
        parts += [
            ExpertPart(f"{expert}.{names.gate}.weight", (size, hidden), "gate_up", gate, i),
            ExpertPart(f"{expert}.{names.up}.weight", (size, hidden), "gate_up", up, i),
            ExpertPart(f"{expert}.{names.down}.weight", (hidden, size), "down", every, i),
        ]
    return parts


def router_sizes(
    config: ModelConfig, experts: ExpertsConfig, names: ExpertNames
) -> list[tuple[str, int, int]]:
    """(module, rows, columns) of what a sparse layer has beside its experts."""
    hidden, shared = config.hidden_size, experts.shared_size
    sizes = [(names.router, experts.n_experts, hidden)]
    if shared is not None:
        gate, up = names.shared_gate_up
        sizes += [(gate, shared, hidden), (up, shared, hidden)]
        sizes += [(names.shared_down, hidden, shared), (names.shared_gate, 1, hidden)]
    return sizes
