"""How much of prompts a step computes, by what waits to be computed and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["PrefillBudget", "PrefillChunk", "affordable_tokens"]

_STEPS = 4  # in which what waits is computed, so long as no more comes and a step has room
_LEAST_TOKENS = 16  # of a step, whatever they cost: a prompt must come to its end


def affordable_tokens(cost: float, token_cost: float, pair_cost: float, start: int) -> int:
    """Most tokens from position start on whose cost, with that of each pair of one of them and a
    token before it, is within `cost`."""
    linear, half = token_cost + pair_cost * start, pair_cost / 2
    if cost <= 0:
        return 0
    if cost == math.inf or linear == half == 0:
        return 1 << 30
    # half n^2 + linear n = cost, solved without the difference of near numbers
    return int(2 * cost / (linear + math.sqrt(linear * linear + 4 * half * cost)))


@dataclass(slots=True)
class PrefillBudget:
    """What is left of a step for prompts."""

    n_tokens: int
    cost: float = math.inf
    token_cost: float = 0.0
    pair_cost: float = 0.0
    is_untouched: bool = True

    def most(self, start: int, wanted: int) -> int:
        """How many of `wanted` tokens from position start on there is room for."""
        n = min(wanted, affordable_tokens(self.cost, self.token_cost, self.pair_cost, start))
        if self.is_untouched:
            n = max(n, min(wanted, _LEAST_TOKENS))
        return min(n, self.n_tokens)

    def take(self, start: int, n_tokens: int) -> None:
        self.n_tokens -= n_tokens
        self.cost -= n_tokens * (self.token_cost + self.pair_cost * (start + n_tokens / 2))
        self.is_untouched = False


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens of one step, of all requests together: `least` while few requests wait for
    their first token, so that those who decode beside them wait little for their next one; more as
    more wait, or where nobody decodes, since larger products are quicker for each token; never
    above `most`, for which there is memory.

    cost: what a step of `least` may cost, in any unit; larger steps in proportion. token_cost,
    pair_cost: of a prompt token and of each pair of it and a token before it, so that steps far
    behind the beginning of a long prompt compute fewer tokens and last as long.
    """

    least: int
    most: int
    cost: float = math.inf
    token_cost: float = 0.0
    pair_cost: float = 0.0

    @classmethod
    def fixed(cls, n_tokens: int | None) -> PrefillChunk | None:
        """However many wait; None and 0 are without limit."""
        return cls(n_tokens, n_tokens) if n_tokens else None

    def budget(self, uncomputed: Iterable[int], is_awaited: bool) -> PrefillBudget:
        """uncomputed: tokens that each request without its first token has left; one of them alone,
        however long, is no crowd. is_awaited: whether anybody decodes beside them."""
        n_tokens = self.most
        if is_awaited and self.least < self.most:
            n_waiting, enough = 0, _STEPS * self.most
            for n in uncomputed:
                n_waiting += min(n, self.least)
                if n_waiting >= enough:  # the rest changes nothing
                    break
            n_tokens = min(self.most, max(self.least, n_waiting // _STEPS))
        cost = self.cost * (n_tokens / self.least)
        return PrefillBudget(n_tokens, cost, self.token_cost, self.pair_cost)

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
