"""Batched sampling for the engine: every row with its own parameters, generator and counts.

A request takes a slot when it starts and keeps it until it ends, preempted or not, so that
penalties, random numbers and counts go on where they were. Per-slot parameters lie in arrays: a
step picks its rows with one index, and only rows that ask for penalties, bias or logprobs cost
Python of their own. Single-threaded: the scheduler's thread owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from astrai.sampling.generator import gumbel_noise, random_seed, row_keys
from astrai.sampling.grammar_masks import apply_masks
from astrai.sampling.logprobs import TokenLogprob, compute_logprobs, top_alternatives
from astrai.sampling.params import SamplingParams
from astrai.sampling.penalties import LogitEdits, apply_edits
from astrai.sampling.strategies import (
    MinPStrategy,
    SamplingPipeline,
    TemperatureStrategy,
    TopPStrategy,
    first_k,
)
from astrai.structured import CompiledGrammar, MaskTable

__all__ = ["SampledRows", "Sampler"]

RANDOM, EDITED, LOGPROBS, MASKED = 1, 2, 4, 8  # bits of Sampler._flags


@dataclass(frozen=True, slots=True)
class SampledRows:
    """One step's draw. faulty_rows: rows whose logits hold NaN or have no finite maximum; their
    ids mean nothing. completed_rows: rows whose grammar admits nothing after this token.
    errors: rows that cannot go on, as their grammar cannot be followed, with the reason."""

    token_ids: list[int]  # [n]
    faulty_rows: frozenset[int]
    logprobs: list[TokenLogprob | None] | None  # [n], None when no row asks
    completed_rows: frozenset[int] = frozenset()
    errors: Mapping[int, str] = field(default_factory=dict)


class Sampler:
    """Parameters and generator state of many requests, sampled together."""

    max_edits: int | None = None  # tokens of one request whose logits may change; None is all

    def __init__(self, vocab_size: int, capacity: int = 64) -> None:
        self._vocab_size = vocab_size
        self._free = list(range(capacity))[::-1]
        self._flags = np.zeros(capacity, np.uint8)
        self._temperature = np.ones(capacity, np.float32)
        self._top_p = np.ones(capacity, np.float32)
        self._min_p = np.zeros(capacity, np.float32)
        self._top_k = np.zeros(capacity, np.int64)  # candidates kept, 1 to vocab_size
        self._seed = np.zeros(capacity, np.uint64)
        self._position = np.zeros(capacity, np.int64)  # tokens generated so far
        self._n_top = np.zeros(capacity, np.int64)  # alternatives asked for
        self._edits: dict[int, LogitEdits] = {}
        self._grammars = MaskTable(vocab_size)

    def add(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        end_ids: Iterable[int] = (),
        grammar: CompiledGrammar | None = None,
    ) -> int:
        """Take a slot for a request. end_ids: the ids that end it, which min_tokens masks and a
        grammar allows only where the answer is whole. Returns the slot."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        seed = random_seed() if params.seed is None else params.seed
        wants_all = not 0 < params.top_k < self._vocab_size
        has_edits = LogitEdits.needed(params)
        self._flags[slot] = (
            (0 if params.is_greedy else RANDOM)
            | (EDITED if has_edits else 0)
            | (0 if params.logprobs is None else LOGPROBS)
            | (0 if grammar is None else MASKED)
        )
        self._temperature[slot] = params.temperature
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._top_k[slot] = self._vocab_size if wants_all else params.top_k
        self._seed[slot] = seed & (2**64 - 1)
        self._position[slot] = 0
        self._n_top[slot] = params.logprobs or 0
        if has_edits:
            self._edits[slot] = LogitEdits(params, prompt_ids, end_ids)
        if grammar is not None:
            self._grammars.add(slot, grammar, end_ids)
        return slot

    def remove(self, slot: int) -> None:
        """Give the slot of an ended request back."""
        self._edits.pop(slot, None)
        self._grammars.remove(slot)
        self._flags[slot] = 0
        self._free.append(slot)

    def sample(self, logits: torch.Tensor, slots: Sequence[int]) -> SampledRows:
        """Draw the next token of each slot and count it.

        logits: [n, vocab], any float dtype, row i for slots[i]; overwritten when float32 and some
        row is penalised or follows a grammar.
        """
        at = np.asarray(slots, np.intp)
        flags = self._flags[at]
        any_flag = int(np.bitwise_or.reduce(flags)) if len(flags) else 0
        logits = logits.float().contiguous()

        logprob_rows: list[int] = []
        raw_logprobs = logits
        if any_flag & LOGPROBS:
            logprob_rows = np.flatnonzero(flags & LOGPROBS).tolist()
            raw_logprobs = compute_logprobs(logits[logprob_rows])
        edited_rows: list[int] = []
        if any_flag & EDITED:
            edited_rows = np.flatnonzero(flags & EDITED).tolist()
            apply_edits(logits, edited_rows, [self._edits[slots[row]] for row in edited_rows])
        masked_rows: list[int] = []
        if any_flag & MASKED:
            masked_rows = np.flatnonzero(flags & MASKED).tolist()
            apply_masks(logits, masked_rows, self._grammars.masks([slots[r] for r in masked_rows]))

        # max() carries NaN into the value, so one pass finds both the greedy ids and the faults.
        best, best_ids = logits.max(dim=-1)
        token_ids = best_ids
        is_finite = torch.isfinite(best)
        faulty_rows = frozenset[int]()
        if not bool(is_finite.all()):
            faulty_rows = frozenset((~is_finite).nonzero().flatten().tolist())
        if any_flag & RANDOM:
            is_random = (flags & RANDOM).astype(bool)
            is_random[list(faulty_rows)] = False
            self._draw(logits, at, np.flatnonzero(is_random), token_ids)

        sampled: list[int] = token_ids.tolist()
        self._position[at] += 1
        for row in edited_rows:
            if row not in faulty_rows:
                self._edits[slots[row]].count(sampled[row])
        logprobs = None
        if logprob_rows:
            logprobs = self._logprobs(raw_logprobs, logprob_rows, at, sampled)
        completed_rows: frozenset[int] = frozenset()
        errors: dict[int, str] = {}
        if masked_rows:
            completed_rows, errors = self._advance(
                [row for row in masked_rows if row not in faulty_rows], slots, sampled
            )
        return SampledRows(sampled, faulty_rows, logprobs, completed_rows, errors)

    def _advance(
        self, rows: list[int], slots: Sequence[int], sampled: Sequence[int]
    ) -> tuple[frozenset[int], dict[int, str]]:
        """Tell the grammars of these rows what was drawn: (completed rows, errors by row)."""
        result = self._grammars.advance([slots[r] for r in rows], [sampled[r] for r in rows])
        row_of = {slots[row]: row for row in rows}
        return (
            frozenset(row_of[slot] for slot in result.completed),
            {row_of[slot]: error for slot, error in result.errors.items()},
        )

    def _draw(
        self,
        logits: torch.Tensor,
        slots: npt.NDArray[np.intp],
        rows: npt.NDArray[np.intp],
        token_ids: torch.Tensor,
    ) -> None:
        """Write the ids drawn for these rows into token_ids, grouped by the rows' own top_k."""
        top_k = self._top_k[slots[rows]]
        for k in np.unique(top_k).tolist():
            group = rows[top_k == k]
            at = slots[group]
            group_tensor = torch.from_numpy(group).to(logits.device)
            scores = logits if len(group) == len(logits) else logits[group_tensor]
            if k < self._vocab_size:
                scores, ids = first_k(scores, k)
            else:
                ids = torch.arange(self._vocab_size, device=logits.device)[None, :]
            strategies = [
                TemperatureStrategy(torch.from_numpy(self._temperature[at])),
                TopPStrategy(torch.from_numpy(self._top_p[at])),
                MinPStrategy(torch.from_numpy(self._min_p[at])),
            ]
            scores = SamplingPipeline(strategies).apply(scores)
            keys = row_keys(self._seed[at], self._position[at]).to(logits.device)
            winners = (scores + gumbel_noise(keys, ids)).argmax(dim=-1, keepdim=True)
            token_ids[group_tensor] = ids.expand_as(scores).gather(-1, winners).flatten()

    def _logprobs(
        self,
        logprobs: torch.Tensor,
        rows: list[int],
        slots: npt.NDArray[np.intp],
        sampled: list[int],
    ) -> list[TokenLogprob | None]:
        """Entries for the rows that ask. logprobs: [len(rows), vocab] of the unmodified logits."""
        chosen_ids = [sampled[row] for row in rows]
        chosen = logprobs.gather(-1, torch.tensor(chosen_ids, device=logprobs.device)[:, None])
        top = top_alternatives(logprobs, self._n_top[slots[rows]].tolist())
        result: list[TokenLogprob | None] = [None] * len(sampled)
        entries = zip(rows, chosen_ids, chosen.flatten().tolist(), top, strict=True)
        for row, token_id, logprob, alternatives in entries:
            result[row] = TokenLogprob(token_id, logprob, alternatives)
        return result

    def _grow(self) -> None:
        """Double the number of slots."""
        capacity = len(self._flags)
        self._free = list(range(capacity, 2 * capacity))[::-1]
        for name in (
            "_flags",
            "_temperature",
            "_top_p",
            "_min_p",
            "_top_k",
            "_seed",
            "_position",
            "_n_top",
        ):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
