"""Log-probabilities of the unmodified distribution for the rows that ask for them."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["LOGPROB_FLOOR", "TokenLogprob", "compute_logprobs", "top_alternatives"]

LOGPROB_FLOOR = -9999.0  # JSON has no -Infinity


class TokenLogprob(NamedTuple):
    """One generated token: natural logarithms, best alternative first, none below LOGPROB_FLOOR."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), as many as asked for


def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
    """log_softmax in float32 with a finite floor. logits: [n, vocab] any float dtype."""
    return torch.log_softmax(logits.float(), dim=-1).clamp_min_(LOGPROB_FLOOR)


def top_alternatives(
    logprobs: torch.Tensor, n_top: list[int]
) -> list[tuple[tuple[int, float], ...]]:
    """The n_top[i] best tokens of each row of logprobs [n, vocab].

    Rows are grouped by their own n_top, so that the order of equal values in one row cannot depend
    on what a neighbour asked for.
    """
    result: list[tuple[tuple[int, float], ...]] = [()] * len(n_top)
    for n in sorted(set(n_top) - {0}):
        rows = [row for row, wanted in enumerate(n_top) if wanted == n]
        values, ids = logprobs[rows].topk(min(n, logprobs.shape[-1]), dim=-1)
        for row, row_ids, row_values in zip(rows, ids.tolist(), values.tolist(), strict=True):
            result[row] = tuple(zip(row_ids, row_values, strict=True))
    return result
