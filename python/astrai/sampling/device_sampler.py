"""Sampling on a GPU for the engine: nothing is read back to draw, and the ids stay on the device.

A step has two halves. On the host `plan` turns the slots of the rows into words of the step's one
copy to the device, and counts their tokens as drawn; on the device `draw` reads those words and
`keep` leaves what the next step needs. The second half may be part of a captured graph, penalties
included; grammars and log-probabilities have their own launches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from astrai.extension import ops
from astrai.kvcache import HostStaging
from astrai.sampling.device_edits import DeviceEdits, edit_capacity
from astrai.sampling.logprobs import TokenLogprob
from astrai.sampling.params import SamplingParams
from astrai.sampling.penalties import LogitEdits
from astrai.sampling.sampler import EDITED, LOGPROBS, MASKED, RANDOM, Sampler
from astrai.structured import CompiledGrammar

__all__ = [
    "WORDS_PER_ROW",
    "DeviceSampler",
    "RowDraw",
    "RowMasks",
    "RowParams",
    "RowPlan",
    "token_logprobs",
]

_log = logging.getLogger(__name__)

WORDS_PER_ROW = 9  # int32 words of a row's parameters
_MAX_NARROW_TOP_K = 512  # of `ops.sample`: up to here the candidates of a row fit one thread block


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What the host knows of a step's rows."""

    slots: Sequence[int]  # [n_rows]
    generations: npt.NDArray[np.int64]  # [n_rows] which request of its slot each row is
    has_wide_rows: bool  # some row draws among more than _MAX_NARROW_TOP_K tokens
    edits: list[tuple[int, LogitEdits]]  # rows with edits
    n_top: list[int | None] | None  # [n_rows] alternatives asked for; None when no row asks
    masked_rows: list[int]  # rows that follow a grammar
    errors: Mapping[int, str] = field(default_factory=dict)  # rows whose edits cannot be made ready

    @property
    def is_plain(self) -> bool:
        """Whether `draw` alone does it all."""
        return self.n_top is None and not self.masked_rows

    @property
    def n_rows(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What a plan has from its slots alone: the same for as long as the same requests draw."""

    slots: Sequence[int]  # [n]
    n_padded: int
    at: npt.NDArray[np.intp]  # slots
    generations: npt.NDArray[np.int64]  # [n]
    words: npt.NDArray[np.int32]  # [WORDS_PER_ROW * n_padded] without positions and edit_rows
    has_wide: bool
    edited: list[int]  # rows
    n_top: list[int | None] | None
    masked: list[int]  # rows


@dataclass(frozen=True, slots=True)
class RowParams:
    """Parameters of n rows on the device: views of [WORDS_PER_ROW * n] int32 words."""

    seeds: torch.Tensor  # int64
    positions: torch.Tensor  # int64
    temperature: torch.Tensor  # float32
    top_p: torch.Tensor  # float32
    min_p: torch.Tensor  # float32
    top_k: torch.Tensor  # int32
    edit_rows: torch.Tensor  # int32: the row's list of edits, -1 for none

    @staticmethod
    def of(words: torch.Tensor) -> RowParams:
        """words: int32 [WORDS_PER_ROW * n], as `DeviceSampler.plan` wrote them; on 8 bytes."""
        n = len(words) // WORDS_PER_ROW
        parts = torch.split(words, [2 * n, 2 * n, n, n, n, n, n])
        seeds, positions, temperature, top_p, min_p, top_k, edit_rows = parts
        return RowParams(
            seeds=seeds.view(torch.int64),
            positions=positions.view(torch.int64),
            temperature=temperature.view(torch.float32),
            top_p=top_p.view(torch.float32),
            min_p=min_p.view(torch.float32),
            top_k=top_k,
            edit_rows=edit_rows,
        )


@dataclass(frozen=True, slots=True)
class RowDraw:
    """Where the draw of up to n rows goes: views of one int32 tensor."""

    words: torch.Tensor  # int32 [n + ceil(n / 4)]
    token_ids: torch.Tensor  # int32 [n]
    is_faulty: torch.Tensor  # uint8 [n]

    @staticmethod
    def of(words: torch.Tensor, n: int) -> RowDraw:
        """words: int32 [n + ceil(n / 4) or more]."""
        words = words[: RowDraw.n_words(n)]
        return RowDraw(words, words[:n], words[n:].view(torch.uint8)[:n])

    @staticmethod
    def n_words(n: int) -> int:
        return n + -(-n // 4)


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The masks of the rows that follow a grammar, as `ops.sample` takes them."""

    bitmask: torch.Tensor  # int32 [n masks, ceil(vocab_size / 32)]
    bitmask_rows: torch.Tensor  # int32 [n], -1 for rows without


class DeviceSampler(Sampler):
    """The slots of `Sampler`, drawn by `ops.sample`. Single-threaded."""

    def __init__(
        self, vocab_size: int, device: torch.device, max_rows: int, max_seq_len: int
    ) -> None:
        """max_rows: of one draw, padding included, and of the pool. max_seq_len: of a text."""
        super().__init__(vocab_size)
        capacity = edit_capacity(vocab_size, max_seq_len)
        self.max_edits = None if capacity == vocab_size else capacity
        self._lists = DeviceEdits(max_rows, capacity, device)
        self._device = device
        self._generation = np.zeros(len(self._flags), np.int64)  # requests a slot has had
        self._rows: _Rows | None = None  # of the last plan, until a slot has another request
        self._workspace = torch.empty(
            ops.sample_workspace_bytes(max_rows, vocab_size), dtype=torch.uint8, device=device
        )

    def plan(
        self,
        slots: Sequence[int],
        pool_rows: Sequence[int],
        words: npt.NDArray[np.int32],
        n_padded: int | None = None,
        staging: HostStaging | None = None,
    ) -> RowPlan:
        """Write the parameters of these slots to words [WORDS_PER_ROW * n_padded], which travel to
        the device, and count one token more for each. pool_rows: of the requests, where their
        lists of edits are made ready on the current stream; what is raised there is an error of
        its row alone, which draws without. Padding rows take the best token. staging: takes what
        travels beside words, and must not be reset before it has arrived; None waits for the
        copies."""
        n = len(slots)
        n_padded = n if n_padded is None else n_padded
        rows = self._rows
        if rows is None or rows.slots != slots or rows.n_padded != n_padded:
            rows = self._rows = self._rows_of(slots, n_padded)
        words[:] = rows.words
        positions = words[2 * n_padded : 4 * n_padded].view(np.int64)
        positions[:n] = drawn = self._position[rows.at]
        edits: list[tuple[int, LogitEdits]] = []
        errors: dict[int, str] = {}
        edit_rows = words[-n_padded:]
        for row in rows.edited:
            slot, pool_row = slots[row], pool_rows[row]
            edit, n_drawn = self._edits[slot], int(self._position[slot])
            try:
                self._lists.prepare(pool_row, edit, n_drawn, staging)
            except Exception as error:
                _log.warning("the edits of a request cannot be made ready", exc_info=True)
                errors[row] = f"its logits cannot be edited: {error}"
                continue
            edits.append((row, edit))
            edit_rows[row] = pool_row
        self._position[rows.at] = drawn + 1
        return RowPlan(
            slots, rows.generations, rows.has_wide, edits, rows.n_top, rows.masked, errors
        )

    def _rows_of(self, slots: Sequence[int], n_padded: int) -> _Rows:
        n = len(slots)
        at = np.asarray(slots, np.intp)
        flags = self._flags[at]
        is_random = (flags & RANDOM) != 0
        words = np.zeros(WORDS_PER_ROW * n_padded, np.int32)
        ends = np.cumsum([2, 2, 1, 1, 1, 1]) * n_padded
        seeds, _, temperature, top_p, min_p, top_k, edit_rows = np.split(words, ends)
        seeds.view(np.uint64)[:n] = self._seed[at]
        temperature.view(np.float32)[:n] = np.where(is_random, self._temperature[at], 0)
        top_p.view(np.float32)[:n] = self._top_p[at]
        min_p.view(np.float32)[:n] = self._min_p[at]
        top_k[:n] = self._top_k[at]
        top_k[n:] = 1
        edit_rows[:] = -1
        asks = (flags & LOGPROBS) != 0
        n_top: list[int | None] | None = None
        if asks.any():
            n_top = [k if ask else None for k, ask in zip(self._n_top[at], asks, strict=True)]
        return _Rows(
            slots=slots,
            n_padded=n_padded,
            at=at,
            generations=self._generation[at],
            words=words,
            has_wide=bool((is_random & (self._top_k[at] > _MAX_NARROW_TOP_K)).any()),
            edited=np.flatnonzero(flags & EDITED).tolist(),
            n_top=n_top,
            masked=np.flatnonzero(flags & MASKED).tolist(),
        )

    def draw(
        self,
        logits: torch.Tensor,
        params: RowParams,
        out: RowDraw,
        has_wide_rows: bool,
        masks: RowMasks | None = None,
    ) -> None:
        """Draw a token of each row of logits [n, vocab_size] into out. Launches only."""
        ops.sample(
            logits,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seeds,
            params.positions,
            edits=self._lists.of(params.edit_rows),
            bitmask=None if masks is None else masks.bitmask,
            bitmask_rows=None if masks is None else masks.bitmask_rows,
            has_wide_rows=has_wide_rows,
            token_ids=out.token_ids,
            is_faulty=out.is_faulty,
            workspace=self._workspace,
        )

    def keep(
        self, out: RowDraw, params: RowParams, rows: torch.Tensor, last_ids: torch.Tensor
    ) -> None:
        """Put what was drawn where the next step finds it: the ids at last_ids[rows], and in the
        lists of edits. rows: int32 [n]. Launches only."""
        edits = self._lists.of(params.edit_rows)
        ops.keep_drawn(out.token_ids, out.is_faulty, rows, last_ids, edits)

    def masks(self, plan: RowPlan, n_padded: int, staging: HostStaging) -> RowMasks | None:
        """The plan's masks on their way to the device from staging; padding rows have none."""
        if not plan.masked_rows:
            return None
        masks = self._grammars.masks([plan.slots[row] for row in plan.masked_rows])
        rows = np.full(n_padded, -1, np.int32)
        rows[plan.masked_rows] = np.arange(len(masks))
        return RowMasks(self._send(masks, staging), self._send(rows, staging))

    def _send(self, array: npt.NDArray[np.int32], staging: HostStaging) -> torch.Tensor:
        return staging.hold(torch.from_numpy(array)).to(self._device, non_blocking=True)

    def note(
        self, plan: RowPlan, token_ids: Sequence[int], faulty_rows: frozenset[int]
    ) -> tuple[frozenset[int], dict[int, str]]:
        """Tell edits and grammars what was drawn: (completed rows, errors by row). Rows whose
        request has left its slot since are passed over."""
        for row, edit in plan.edits:
            if row not in faulty_rows:
                edit.count(token_ids[row])
        if not plan.masked_rows:
            return frozenset(), dict(plan.errors)
        is_there = self._generation[np.asarray(plan.slots, np.intp)] == plan.generations
        ending = faulty_rows | plan.errors.keys()
        rows = [row for row in plan.masked_rows if is_there[row] and row not in ending]
        completed_rows, errors = self._advance(rows, plan.slots, token_ids)
        return completed_rows, {**errors, **plan.errors}

    def add(
        self,
        params: SamplingParams,
        prompt_ids: Iterable[int] = (),
        end_ids: Iterable[int] = (),
        grammar: CompiledGrammar | None = None,
    ) -> int:
        slot = super().add(params, prompt_ids, end_ids, grammar)
        self._rows = None
        if slot >= len(self._generation):
            more = np.zeros(len(self._flags) - len(self._generation), np.int64)
            self._generation = np.concatenate([self._generation, more])
        return slot

    def remove(self, slot: int) -> None:
        super().remove(slot)
        self._rows = None
        self._generation[slot] += 1


def token_logprobs(
    n_top: Sequence[int | None],
    token_ids: Sequence[int],
    chosen: Sequence[float],
    top_ids: Sequence[Sequence[int]],
    top_logprobs: Sequence[Sequence[float]],
) -> list[TokenLogprob | None]:
    """Entries of the rows that ask, from what `ops.top_logprobs` gave for all rows."""
    return [
        None
        if n is None
        else TokenLogprob(token_id, logprob, tuple(zip(ids[:n], values[:n], strict=True)))
        for n, token_id, logprob, ids, values in zip(
            n_top, token_ids, chosen, top_ids, top_logprobs, strict=False
        )
    ]
