"""How many prompt tokens a step may compute beside decoding requests, learned from steps' times.

    seconds = c0 + c1 requests + c2 keys + c3 tokens + c4 pairs

requests and keys: those that decode and the keys they read; tokens and pairs: of the chunks of
prompts and of query and key in them. The coefficients are those that fit the last steps best and
are not negative, older steps counting less and less; a chunk is what they leave of the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from astrai.engine.prefill_chunk import affordable_tokens

if TYPE_CHECKING:
    from astrai.engine.plan import StepGroup

__all__ = ["ItlPace"]

_UNITS = (1.0, 64.0, 65536.0, 512.0, 2.0**24)  # of the terms, so that all are of the order of 1
_N_TERMS = len(_UNITS)
_FORGETTING = 0.985  # weight of a step against the next one: some 70 steps count
_RIDGE = 1e-4  # holds terms that have not varied yet
_SWEEPS = 8
_FIRST_CHUNK = 64  # tokens, while nothing is known
_LEAST_CHUNK = 16  # a target that cannot be met must not stop prompts
_GROWTH = 2  # against the largest chunk lately seen: the fit is not trusted far outside
_OUTLIER = 4  # times what was expected: a pause of the machine tells nothing about the next step
_MARGIN = 2.5  # mean errors of the fit by which a step may outlast what is expected of it


class ItlPace:
    """Belongs to the scheduler's thread. `begin_step`, then `take` for each chunk, for a plan;
    `observe` with what was planned, once its time is known."""

    def __init__(self, target_s: float) -> None:
        """target_s: seconds between two tokens of a request, which steps keep below if they can."""
        self._target_s = target_s
        self._moments = [[0.0] * _N_TERMS for _ in range(_N_TERMS)]  # sums of term * term
        self._sums = [0.0] * _N_TERMS  # sums of term * seconds
        self._fit = [0.0] * _N_TERMS  # seconds a unit
        self._n_observed = 0
        self._mean_error = 0.0  # of the fit, as a share: longer steps vary by more seconds
        self._lately = 0.0  # the largest chunk, fading
        self._is_paced = False
        self._left_s = 0.0
        self._n_taken = 0

    def begin_step(self, starts: Iterable[int]) -> None:
        """starts: of the requests that decode in the step; without any there is nobody to wait."""
        keys = list(starts)
        self._is_paced = bool(keys)
        self._n_taken = 0
        expected = self._expected([1.0, len(keys), sum(keys), 0.0, 0.0])
        self._left_s = self._target_s / (1 + _MARGIN * self._mean_error) - expected

    def take(self, start: int, wanted: int) -> int:
        """Tokens from position start on that the step may compute, at most wanted. The first chunk
        of a step gets some in any case."""
        if not self._is_paced:
            return wanted
        token_s, pair_s = self._fit[3] / _UNITS[3], self._fit[4] / _UNITS[4]
        affordable = affordable_tokens(self._left_s, token_s, pair_s, start)
        n = min(wanted, affordable, self._room() - self._n_taken)
        if self._n_taken == 0:
            n = max(n, min(wanted, _LEAST_CHUNK))
        n = max(n, 0)
        self._left_s -= self._expected([0.0, 0.0, 0.0, n, _pairs(start, n)])
        self._n_taken += n
        return n

    def observe(self, groups: Iterable[StepGroup[Any]], seconds: float) -> None:
        """A step of these groups took so long."""
        terms = _terms_of(groups)
        expected = self._expected(terms)
        if self._n_observed >= 8 and seconds > _OUTLIER * max(expected, 1e-6):
            seconds = _OUTLIER * expected
        if self._n_observed >= 8 and expected > 0:
            self._mean_error += 0.05 * (abs(seconds - expected) / expected - self._mean_error)
        scaled = [term / unit for term, unit in zip(terms, _UNITS, strict=True)]
        for i, row in enumerate(self._moments):
            for j in range(_N_TERMS):
                row[j] = _FORGETTING * row[j] + scaled[i] * scaled[j]
            self._sums[i] = _FORGETTING * self._sums[i] + scaled[i] * seconds
        self._solve()
        self._lately = max(terms[3], _FORGETTING * self._lately)
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


def _pairs(start: int, n: int) -> float:
    return n * (start + n / 2)


def _terms_of(groups: Iterable[StepGroup[Any]]) -> list[float]:
    n_decode = n_keys = n_tokens = 0
    pairs = 0.0
    for group in groups:
        n = group.n_decode
        n_decode += n
        n_keys += sum(group.starts[:n])
        for start, q_len in zip(group.starts[n:], group.q_lens[n:], strict=True):
            n_tokens += q_len
            pairs += _pairs(start, q_len)
    return [1.0, n_decode, n_keys, n_tokens, pairs]
