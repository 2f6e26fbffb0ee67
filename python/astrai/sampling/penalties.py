"""Changes to the raw logits of single rows: bias, penalties and masked end ids.

Each row keeps only the distinct tokens it has seen, with their counts; a step gathers the touched
logits of all such rows into one flat array, changes them and scatters them back. Nothing of the
size of the vocabulary is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from astrai.sampling.params import SamplingParams

__all__ = ["LogitEdits", "apply_edits"]


class LogitEdits:
    """The edits of one request, kept from admission to the end (through preemption).

    Order: min_tokens mask and logit_bias, then repetition_penalty (Keskar et al., CTRL, 2019,
    section 4.1), then frequency and presence penalties (OpenAI's formula: logit -= count *
    frequency + (count > 0) * presence).
    """

    def __init__(
        self, params: SamplingParams, prompt_ids: Iterable[int], end_ids: Iterable[int]
    ) -> None:
        bias = params.logit_bias or {}
        self.bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self.bias_values = np.fromiter(bias.values(), np.float32, len(bias))
        masked_ids = sorted(set(end_ids)) if params.min_tokens else []
        self.masked_ids = np.array(masked_ids, np.int64)  # each once
        self.min_tokens = params.min_tokens
        self.repetition = params.repetition_penalty
        self.frequency = params.frequency_penalty
        self.presence = params.presence_penalty
        self.has_penalties = params.has_penalties
        # Prompt tokens count 0: only repetition_penalty looks at them.
        seen = sorted(set(prompt_ids)) if self.repetition != 1 else []
        self._index = {token_id: i for i, token_id in enumerate(seen)}  # id -> place in the arrays
        capacity = len(seen) + 64
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: len(seen)] = seen
        self._counts = np.zeros(capacity, np.float32)
        self.n_generated = 0

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """False for the common request whose logits are taken as they are."""
        return params.has_penalties or bool(params.logit_bias) or params.min_tokens > 0

    @staticmethod
    def most(params: SamplingParams, n_prompt: int, n_end_ids: int, max_tokens: int) -> int:
        """Distinct tokens at most that these parameters change over a whole text."""
        n_fixed = len(params.logit_bias or ()) + (n_end_ids if params.min_tokens else 0)
        return n_fixed + (n_prompt + max_tokens if params.has_penalties else 0)

    def count(self, token_id: int) -> None:
        """Take note of a generated token."""
        self.n_generated += 1
        if not self.has_penalties:
            return
        place = self._index.setdefault(token_id, len(self._index))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] += 1

    def seen(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Distinct tokens seen and how often each was generated: two views of equal length."""
        return self._ids[: len(self._index)], self._counts[: len(self._index)]


def apply_edits(logits: torch.Tensor, rows: Sequence[int], edits: Sequence[LogitEdits]) -> None:
    """Change row rows[i] of logits [n, vocab] float32 in place by edits[i]; contiguous logits."""
    vocab_size = logits.shape[-1]
    flat = logits.view(-1)
    bases = [row * vocab_size for row in rows]

    masked = [
        base + edit.masked_ids
        for base, edit in zip(bases, edits, strict=True)
        if edit.n_generated < edit.min_tokens
    ]
    if masked:
        flat[_tensor(np.concatenate(masked), flat)] = float("-inf")

    biased = [(base, edit) for base, edit in zip(bases, edits, strict=True) if len(edit.bias_ids)]
    if biased:
        at = _tensor(np.concatenate([base + edit.bias_ids for base, edit in biased]), flat)
        flat[at] += _tensor(np.concatenate([edit.bias_values for _, edit in biased]), flat)

    penalised = [
        (base, edit, *edit.seen())
        for base, edit in zip(bases, edits, strict=True)
        if edit.has_penalties
    ]
    if penalised:
        at = _tensor(np.concatenate([base + ids for base, _, ids, _ in penalised]), flat)
        factor = _tensor(
            np.concatenate(
                [np.full(len(ids), edit.repetition, np.float32) for _, edit, ids, _ in penalised]
            ),
            flat,
        )
        minus = _tensor(
            np.concatenate(
                [
                    edit.frequency * counts + edit.presence * (counts > 0).astype(np.float32)
                    for _, edit, _, counts in penalised
                ]
            ).astype(np.float32),
            flat,
        )
        values = flat[at]
        flat[at] = torch.where(values > 0, values / factor, values * factor) - minus


def _tensor(array: npt.NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(array).to(like.device)
