"""How many prompt tokens a step may compute beside decoding requests, learned from steps' times.

    seconds = c0 + c1 requests + c2 keys                              of any step
            + c3 + c4 rows + c5 pairs + off[rows]                     of one with chunks of prompts

requests and keys: those that decode and the keys they read; rows: all of the step, padded as the
executor pads them; pairs: of query and key in the chunks, where attention works on whole tiles of
queries however few of them a chunk fills. The coefficients are those that fit the last steps best
and are not negative, older steps counting less and less; off is what steps of one padded size
lasted beside that. A chunk is the largest number of whole tiles that the target leaves time for,
short of a margin that grows with every step that comes too close to the target though it should
not, and else shrinks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from astrai.engine.prefill_chunk import affordable_tokens

if TYPE_CHECKING:
    from astrai.engine.plan import StepGroup

__all__ = ["ItlPace"]

_UNITS = (1.0, 64.0, 65536.0, 1.0, 512.0, 2.0**24)  # of the terms: all are of the order of 1
_N_TERMS = len(_UNITS)
_FORGETTING = 0.985  # weight of a step against the next one: some 70 steps count
_RIDGE = 1e-4  # holds terms that have not varied yet
_SWEEPS = 8
_FIRST_CHUNK = 64  # tokens, while nothing is known
_LEAST_CHUNK = 16  # a target that cannot be met must not stop prompts
_GROWTH = 2  # against the largest chunk lately seen: the fit is not trusted far outside
_OUTLIER = 4  # times what was expected: a pause of the machine tells nothing about the next step
_OFF_RATE = 0.2
_UNPADDED = range(16, 1 << 16, 16)  # where rows are not padded, so many cost about the same
# The margin settles where one step in a hundred is late, and late is what comes close to the
# target: what readers see varies a little more than steps do.
_LATE = 0.96
_FIRST_MARGIN, _MOST_MARGIN = 0.1, 1.0
_RISE, _FALL = 0.015, 0.00015


class ItlPace:
    """Belongs to the scheduler's thread. `begin_step`, then `take` for each chunk, for a plan;
    `observe` with what was planned, once its time is known."""

    def __init__(self, target_s: float, sizes: Sequence[int] = (), tile: int = 1) -> None:
        """target_s: seconds between two tokens of a request, which steps keep below if they can.
        sizes: rising numbers of rows to which steps with chunks are padded, none if they are not.
        tile: tokens of a chunk that attention takes together."""
        self._target_s = target_s
        self._tile = tile
        self._least = max(_LEAST_CHUNK, tile)
        self._sizes = sizes or _UNPADDED
        self._moments = [[0.0] * _N_TERMS for _ in range(_N_TERMS)]  # sums of term * term
        self._sums = [0.0] * _N_TERMS  # sums of term * seconds
        self._fit = [0.0] * _N_TERMS  # seconds a unit
        self._off: dict[int, float] = {}  # seconds, by padded rows
        self._margin = _FIRST_MARGIN  # share by which a step may outlast what is expected of it
        self._n_observed = 0
        self._lately = 0.0  # the largest chunk, fading
        self._is_paced = False
        self._left_s = 0.0  # without what the rows take
        self._n_rows = 0
        self._n_taken = 0

    def begin_step(self, starts: Iterable[int]) -> None:
        """starts: of the requests that decode in the step; without any there is nobody to wait."""
        keys = list(starts)
        self._is_paced = bool(keys)
        self._n_rows, self._n_taken = len(keys), 0
        expected = self._expected([1.0, len(keys), sum(keys), 1.0, 0.0, 0.0])
        self._left_s = self._target_s / (1 + self._margin) - expected

    def take(self, start: int, wanted: int) -> int:
        """Tokens from position start on that the step may compute, at most wanted. The first chunk
        of a step gets some in any case."""
        if not self._is_paced:
            return wanted
        n = self._most(start, min(wanted, self._room() - self._n_taken))
        if self._n_taken == 0:
            n = max(n, min(wanted, self._least))
        self._left_s -= self._expected([0.0, 0.0, 0.0, 0.0, 0.0, self._pairs(start, n)])
        self._n_taken += n
        self._n_rows += n
        return n

    def observe(self, groups: Iterable[StepGroup[Any]], seconds: float) -> None:
        """A step of these groups took so long."""
        terms, n_tokens = self._terms_of(groups)
        off = self._off.get(int(terms[4]), 0.0)
        expected = self._expected(terms) + off
        if self._n_observed >= 8 and seconds > _OUTLIER * max(expected, 1e-6):
            seconds = _OUTLIER * expected
        elif n_tokens > self._least and 0 < expected <= self._target_s:  # else no margin would help
            self._margin += _RISE if seconds > _LATE * self._target_s else -_FALL
            self._margin = min(max(self._margin, 0.0), _MOST_MARGIN)
        scaled = [term / unit for term, unit in zip(terms, _UNITS, strict=True)]
        for i, row in enumerate(self._moments):
            for j in range(_N_TERMS):
                row[j] = _FORGETTING * row[j] + scaled[i] * scaled[j]
            self._sums[i] = _FORGETTING * self._sums[i] + scaled[i] * seconds
        self._solve()
        if n_tokens:
            error = seconds - self._expected(terms)
            self._off[int(terms[4])] = off + _OFF_RATE * (error - off)
        self._lately = max(n_tokens, _FORGETTING * self._lately)
        self._n_observed += 1

    def _solve(self) -> None:
        """A few sweeps of coordinate descent for the least squares without negative terms, from
        where the last step's have ended."""
        fit = self._fit
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._moments):
                rest = self._sums[i] - sum([row[j] * fit[j] for j in range(_N_TERMS) if j != i])
                fit[i] = max(0.0, rest / (row[i] + _RIDGE))

    def _expected(self, terms: list[float]) -> float:
        return sum([c * t / unit for c, t, unit in zip(self._fit, terms, _UNITS, strict=True)])

    def _room(self) -> int:
        """Tokens that the fit can be asked about."""
        return max(_FIRST_CHUNK, int(_GROWTH * self._lately))

    def _most(self, start: int, wanted: int) -> int:
        """As many of `wanted` tokens from position start on as there is time for: rows that would
        be padding cost nothing, more rows what the next size does."""
        row_s, pair_s = self._fit[4] / _UNITS[4], self._fit[5] / _UNITS[5]
        n = 0
        for place in range(bisect_left(self._sizes, self._n_rows + 1), len(self._sizes)):
            size = self._sizes[place]
            left_s = self._left_s - row_s * size - self._off.get(size, 0.0)
            n_fitting = min(wanted, size - self._n_rows)
            n_affordable = affordable_tokens(left_s, 0.0, pair_s, start)
            n = max(n, min(n_fitting, n_affordable // self._tile * self._tile))
            if n < n_fitting or n_fitting == wanted:
                break
        return n

    def _padded(self, n_rows: int) -> int:
        place = bisect_left(self._sizes, n_rows)
        return self._sizes[place] if place < len(self._sizes) else n_rows

    def _pairs(self, start: int, n: int) -> float:
        return -(-n // self._tile) * self._tile * (start + n / 2)

    def _terms_of(self, groups: Iterable[StepGroup[Any]]) -> tuple[list[float], int]:
        """Also how many tokens of prompts."""
        n_decode = n_keys = n_tokens = 0
        pairs = 0.0
        for group in groups:
            n = group.n_decode
            n_decode += n
            n_keys += sum(group.starts[:n])
            for start, q_len in zip(group.starts[n:], group.q_lens[n:], strict=True):
                n_tokens += q_len
                pairs += self._pairs(start, q_len)
        rows = self._padded(n_decode + n_tokens) if n_tokens else 0
        return [1.0, n_decode, n_keys, float(n_tokens > 0), rows, pairs], n_tokens
