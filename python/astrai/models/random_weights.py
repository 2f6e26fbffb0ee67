"""Random weights of any configuration, for measurements and tests without a checkpoint."""

from __future__ import annotations

import torch

from astrai.models.config import ModelConfig
from astrai.models.weights import expected_shapes

__all__ = ["RandomWeights"]

_STD = 0.02  # what checkpoints of these families start their training from


class RandomWeights:
    """A `WeightSource` that makes each tensor where it belongs. Norms are ones."""

    rows_interleaved = True  # random rows are in no order
    norm_offset = 0.0

    def __init__(self, config: ModelConfig, seed: int = 0, std: float = _STD) -> None:
        self._shapes = dict(expected_shapes(config))
        self._seed = seed
        self._std = std
        self._generators: dict[torch.device, torch.Generator] = {}

    def names(self) -> set[str]:
        return set(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def n_bytes(self, name: str) -> int:
        return 0

    def where(self, name: str | None = None) -> str:
        return "random weights"

    def copy_into(
        self, name: str, out: torch.Tensor, row_index: torch.Tensor | None = None
    ) -> None:
        if out.dim() == 1:
            out.fill_(1.0)
            return
        generator = self._generators.get(out.device)
        if generator is None:
            generator = torch.Generator(out.device).manual_seed(self._seed)
            self._generators[out.device] = generator
        out.normal_(0.0, self._std, generator=generator)
