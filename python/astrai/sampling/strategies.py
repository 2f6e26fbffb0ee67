"""The sampling pipeline as small composable steps: temperature, top-k, top-p, min-p.

Each strategy maps logits [n, width] to new logits of the same shape in float32, with what it
rejects set to filter_value; none writes into its argument. Parameters are one number or one per
row. The engine's `Sampler` uses the same steps on the candidates of each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

__all__ = [
    "BaseSamplingStrategy",
    "MinPStrategy",
    "SamplingPipeline",
    "TemperatureStrategy",
    "TopKStrategy",
    "TopPStrategy",
    "sample",
]

_NEG_INF = float("-inf")
# Below this a float32 temperature could round to 0 and divide 0 by 0.
_MIN_TEMPERATURE = 1e-6

Parameter = float | Sequence[float] | torch.Tensor


class BaseSamplingStrategy(ABC):
    """One step of the pipeline."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, filter_value: float = _NEG_INF) -> torch.Tensor:
        """New logits [n, width] float32; at least one entry of each row survives."""


class TemperatureStrategy(BaseSamplingStrategy):
    """Divide by the temperature; a row with temperature 0 keeps only its best token."""

    def __init__(self, temperature: Parameter) -> None:
        self.temperature = temperature

    def apply(self, logits: torch.Tensor, filter_value: float = _NEG_INF) -> torch.Tensor:
        temperature = _column(self.temperature, logits)
        # The maximum goes first: what remains is <= 0 and cannot overflow upwards.
        shifted = logits.float() - logits.float().amax(dim=-1, keepdim=True)
        scaled = shifted / temperature.clamp_min(_MIN_TEMPERATURE)
        is_greedy = temperature == 0
        if not is_greedy.any():
            return scaled
        # argmax names the lowest index on a tie, which a comparison with the maximum would not.
        only_best = torch.full_like(shifted, filter_value)
        only_best.scatter_(-1, logits.argmax(dim=-1, keepdim=True), 0.0)
        return torch.where(is_greedy, only_best, scaled)


class TopKStrategy(BaseSamplingStrategy):
    """Keep the k best tokens of a row; 0 and -1 keep all, more than the width keeps all."""

    def __init__(self, top_k: Parameter) -> None:
        self.top_k = top_k

    def apply(self, logits: torch.Tensor, filter_value: float = _NEG_INF) -> torch.Tensor:
        width = logits.shape[-1]
        result = logits.float().clone()
        top_k = _column(self.top_k, logits).flatten().long()
        # Rows are grouped by their own k: which of two equal logits is kept never depends on the
        # k of a neighbour.
        for k in sorted(set(top_k.tolist())):
            if not 0 < k < width:
                continue
            rows = (top_k == k).nonzero().flatten()
            values, ids = first_k(result[rows], k)
            kept = torch.full((len(rows), width), filter_value, device=logits.device)
            result[rows] = kept.scatter_(-1, ids, values)
        return result


def first_k(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, ids) of the first k tokens of each row, both [n, k]: by falling score, of equal
    scores the lower id first. scores: [n, width], k < width."""
    values, ids = scores.topk(k + 1, dim=-1)
    # Which of equal scores are among them, and in which order, topk leaves open.
    is_cut = (values[:, k - 1] == values[:, k]) & (values[:, k] > _NEG_INF)
    for row in is_cut.nonzero().flatten().tolist():
        last = values[row, k - 1]
        n_before = int((values[row] > last).sum())
        equal_ids = (scores[row] == last).nonzero().flatten()
        ids[row, n_before:k] = equal_ids[: k - n_before]
    ids, by_id = ids[:, :k].sort(dim=-1)
    values = values[:, :k].gather(-1, by_id)
    values, by_value = values.sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, by_value)


class TopPStrategy(BaseSamplingStrategy):
    """Keep the smallest set of best tokens whose probabilities reach top_p, and always the best.

    Nucleus sampling: Holtzman et al., 2020, section 3.1. A row with top_p 1 is left as it is.
    """

    def __init__(self, top_p: Parameter) -> None:
        self.top_p = top_p

    def apply(self, logits: torch.Tensor, filter_value: float = _NEG_INF) -> torch.Tensor:
        top_p = _column(self.top_p, logits)
        scores = logits.float()
        rows = (top_p.flatten() < 1).nonzero().flatten()
        if len(rows) == 0:
            return scores.clone()
        ordered, ids = scores[rows].sort(dim=-1, descending=True, stable=True)
        probabilities = torch.softmax(ordered, dim=-1)
        mass_before = probabilities.cumsum(dim=-1) - probabilities
        rejected = mass_before >= top_p[rows]
        rejected[:, 0] = False
        ordered.masked_fill_(rejected, filter_value)
        return scores.index_copy(0, rows, torch.empty_like(ordered).scatter_(-1, ids, ordered))


class MinPStrategy(BaseSamplingStrategy):
    """Reject tokens less likely than min_p times the best one (Nguyen et al., 2024)."""

    def __init__(self, min_p: Parameter) -> None:
        self.min_p = min_p

    def apply(self, logits: torch.Tensor, filter_value: float = _NEG_INF) -> torch.Tensor:
        scores = logits.float()
        # p >= min_p * p_max in logarithms; log(0) is -inf, which rejects nothing.
        floor = scores.amax(dim=-1, keepdim=True) + _column(self.min_p, logits).log()
        return scores.masked_fill(scores < floor, filter_value)


class SamplingPipeline(BaseSamplingStrategy):
    """Strategies applied in order."""

    def __init__(self, strategies: Sequence[BaseSamplingStrategy]) -> None:
        self.strategies = tuple(strategies)

    def apply(self, logits: torch.Tensor, filter_value: float = _NEG_INF) -> torch.Tensor:
        for strategy in self.strategies:
            logits = strategy.apply(logits, filter_value)
        return logits

    def sample(
        self, logits: torch.Tensor, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draw one id per row, [n] int64: apply, softmax, multinomial."""
        probabilities = torch.softmax(self.apply(logits).float(), dim=-1)
        return torch.multinomial(probabilities, 1, generator=generator).flatten()


def sample(
    logits: torch.Tensor,
    temperature: Parameter = 1.0,
    top_k: Parameter = 50,
    top_p: Parameter = 1.0,
    min_p: Parameter = 0.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Draw one id per row of logits [n, vocab] in one call, [n] int64."""
    return SamplingPipeline(
        [
            TemperatureStrategy(temperature),
            TopKStrategy(top_k),
            TopPStrategy(top_p),
            MinPStrategy(min_p),
        ]
    ).sample(logits, generator)


def _column(value: Parameter, logits: torch.Tensor) -> torch.Tensor:
    """The parameter as a [n, 1] float32 column on the logits' device."""
    column = torch.as_tensor(value, dtype=torch.float32, device=logits.device).reshape(-1, 1)
    if column.shape[0] not in (1, logits.shape[0]):
        raise ValueError(
            f"sampling parameter has {column.shape[0]} values for {logits.shape[0]} rows"
        )
    return column.expand(logits.shape[0], 1)
