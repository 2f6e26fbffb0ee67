"""`GenerateResult`: where a waiting thread collects the texts of one or more requests.

The engine's thread appends, the caller's thread waits: on a `Condition` for whole texts, on an
`Event` for the pieces of a stream.
"""

from __future__ import annotations

import threading
from enum import Enum

__all__ = ["STOP", "GenerateResult", "Stop"]


class Stop(Enum):
    """The end of a text. Not a string: no generated text can equal it."""

    STOP = "stop"


STOP = Stop.STOP


class GenerateResult:
    """The texts of `count` requests, by index. All methods are thread-safe."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._changed = threading.Condition()
        self._news = threading.Event()
        self._tokens: list[tuple[int, str | Stop]] = []  # not taken by pop_all yet
        self._texts: list[list[str]] = [[] for _ in range(count)]
        self._n_open = count
        self._is_done = [False] * count
        self._errors: dict[int, Exception] = {}

    def append(self, token: str | Stop, idx: int = 0) -> None:
        """Add a piece of text, or STOP to end the text; what follows a STOP is ignored."""
        with self._changed:
            if self._is_done[idx]:
                return
            self._tokens.append((idx, token))
            self._news.set()
            if not isinstance(token, Stop):
                self._texts[idx].append(token)
                return
            self._is_done[idx] = True
            self._n_open -= 1
            if self._n_open == 0:
                self._changed.notify_all()

    def fail(self, error: Exception, idx: int = 0) -> None:
        """End a text with an error, which get_results raises."""
        with self._changed:
            if not self._is_done[idx]:
                self._errors[idx] = error
            self.append(STOP, idx)  # the condition's lock is reentrant

    def pop_all(self) -> list[tuple[int, str | Stop]]:
        """Take the (index, piece) pairs that came since the last call."""
        with self._changed:
            self._news.clear()
            tokens, self._tokens = self._tokens, []
            return tokens

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until pop_all has something to give. False on timeout."""
        return self._news.wait(timeout)

    def wait_completion(self, timeout: float | None = None) -> bool:
        """Wait until every text has ended. False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._n_open == 0, timeout)

    @property
    def n_ended(self) -> int:
        """How many texts have ended."""
        with self._changed:
            return self.count - self._n_open

    def get_results(self) -> list[str]:
        """The texts so far. Raises the error of the first text that ended with one."""
        with self._changed:
            if self._errors:
                raise self._errors[min(self._errors)]
            return ["".join(pieces) for pieces in self._texts]

    def error(self, idx: int = 0) -> Exception | None:
        """What ended this text, if it was an error."""
        with self._changed:
            return self._errors.get(idx)
