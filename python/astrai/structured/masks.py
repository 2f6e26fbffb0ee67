"""Which tokens each running request may draw next, as bit masks in one table.

    row of a request: int32 [n_words], bit i % 32 of word i / 32 allows token i

A row is filled when its request starts and again after each of its tokens, so that it is ready
when the next step samples, and stays valid through preemption. Single-threaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from astrai.structured.compiler import CompiledGrammar

if TYPE_CHECKING:
    import llguidance

__all__ = ["Advance", "MaskTable"]

# Below these, handing rows to other threads costs more than it saves.
_MIN_PARALLEL_ROWS = 8
_MIN_PARALLEL_CPUS = 4
# A mask that takes longer fails its request: every other request of the batch waits for it. After a
# step that took _SLOW_STEP_S the rows are filled one by one, to find which one it is.
_MAX_MASK_S = 0.1  # of CPU time
_SLOW_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Advance:
    """What a step did to its rows. completed: slots whose grammar admits nothing further, the
    token just drawn being the last. errors: slots whose grammar cannot go on, with the reason."""

    completed: frozenset[int] = field(default_factory=frozenset)
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    matcher: llguidance.LLMatcher
    end_ids: frozenset[int]
    end_words: npt.NDArray[np.intp]  # where the bits of end_ids are, and the bits
    end_bits: npt.NDArray[np.int32]
    may_end: bool = False


class MaskTable:
    """The grammars of running requests, by slot."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # The last bit is the vocabulary's extra id, "may end here".
        self._words = np.zeros((0, vocab_size // 32 + 1), np.int32)
        self._end_word = vocab_size // 32
        self._end_bit = _bits(np.array([vocab_size], np.intp))[0]
        self._rows: dict[int, _Row] = {}
        self._executor: llguidance.LLExecutor | None = None
        self._is_slow = False
        self._is_parallel = (os.cpu_count() or 1) >= _MIN_PARALLEL_CPUS

    def add(self, slot: int, grammar: CompiledGrammar, end_ids: Iterable[int]) -> None:
        """Start a grammar in a free slot. end_ids: tokens that end this request's answer; they are
        allowed exactly where the grammar lets it end."""
        if slot >= len(self._words):
            grown = np.zeros((max(2 * len(self._words), slot + 1), self._words.shape[1]), np.int32)
            grown[: len(self._words)] = self._words
            self._words = grown
        ids = np.array(sorted(end_ids), np.intp)
        row = _Row(grammar.new_matcher(), frozenset(ids.tolist()), ids // 32, _bits(ids))
        self._rows[slot] = row
        self._words[slot] = grammar.first_mask
        self._put_ends(slot, row)

    def remove(self, slot: int) -> None:
        """Forget a slot's grammar; nothing happens when it has none."""
        self._rows.pop(slot, None)

    def masks(self, slots: Sequence[int]) -> npt.NDArray[np.int32]:
        """A copy of the rows, [n, ceil(vocab_size / 32)]."""
        return self._words[list(slots), : (self._vocab_size + 31) // 32]

    def advance(self, slots: Sequence[int], token_ids: Sequence[int]) -> Advance:
        """Take note of the token drawn in each slot and fill the masks of the next one."""
        completed: set[int] = set()
        errors: dict[int, str] = {}
        going_on: list[int] = []
        for slot, token_id in zip(slots, token_ids, strict=True):
            row = self._rows[slot]
            if row.may_end and token_id in row.end_ids:
                continue  # no part of the answer; the request ends with it
            matcher = row.matcher
            if not matcher.consume_token(token_id):
                errors[slot] = f"token {token_id} is not in its grammar"
            elif not matcher.is_stopped():
                going_on.append(slot)
            elif matcher.is_accepting() and not matcher.is_error():
                completed.add(slot)
            else:
                errors[slot] = _reason(matcher)
        too_slow = self._fill(going_on)
        for slot in going_on:
            row = self._rows[slot]
            if slot in too_slow:
                errors[slot] = "its grammar takes too long to follow"
            elif row.matcher.is_error():
                errors[slot] = _reason(row.matcher)
            elif not self._put_ends(slot, row):
                # Nothing can follow, which llguidance noticed only now.
                if row.may_end:
                    completed.add(slot)
                else:
                    errors[slot] = _reason(row.matcher)
        return Advance(frozenset(completed), errors)

    def _fill(self, slots: list[int]) -> set[int]:
        """Compute the rows of these slots. Returns the slots whose grammar is too slow."""
        begun = time.perf_counter()
        too_slow: set[int] = set()
        address, row_bytes = self._words.ctypes.data, self._words.strides[0]
        if len(slots) < _MIN_PARALLEL_ROWS or not self._is_parallel or self._is_slow:
            for slot in slots:
                before = time.thread_time()
                matcher = self._rows[slot].matcher
                matcher.unsafe_compute_mask_ptr(address + slot * row_bytes, row_bytes)
                if time.thread_time() - before > _MAX_MASK_S:
                    too_slow.add(slot)
        else:
            if self._executor is None:
                import llguidance  # there is a matcher, so it is loaded

                self._executor = llguidance.LLExecutor()
            matchers = [(self._rows[slot].matcher, slot) for slot in slots]
            self._executor.unsafe_compute_mask_ptr(matchers, address, row_bytes, len(self._words))
        self._is_slow = time.perf_counter() - begun > _SLOW_STEP_S
        return too_slow

    def _put_ends(self, slot: int, row: _Row) -> bool:
        """Turn "may end here" into this request's end ids. False when no other token is allowed."""
        words = self._words[slot]
        row.may_end = bool(words[self._end_word] & self._end_bit)
        words[self._end_word] &= ~self._end_bit
        goes_on = bool(words.any())
        if row.may_end:
            np.bitwise_or.at(words, row.end_words, row.end_bits)
        return goes_on


def _bits(token_ids: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    bits: npt.NDArray[np.uint32] = np.uint32(1) << (token_ids % 32).astype(np.uint32)
    return bits.view(np.int32)


def _reason(matcher: llguidance.LLMatcher) -> str:
    """Why a matcher stopped, without the grammar's text, which may be a client's secret."""
    return f"its grammar cannot be followed further ({matcher.stop_reason()})"
