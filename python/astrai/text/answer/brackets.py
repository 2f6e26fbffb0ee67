"""`BracketScanner`: where a bracketed value ends in a text that is still growing."""

from __future__ import annotations

import re

__all__ = ["MAX_DEPTH", "BracketScanner", "MalformedError"]

MAX_DEPTH = 128  # brackets inside each other; readers of the value may recurse

_CLOSER = {"{": "}", "[": "]", "(": ")"}
_OUTSIDE = {
    '"': re.compile(r'["{}\[\]]'),
    "\"'": re.compile(r"[\"'{}\[\]()]"),
}
_INSIDE = {quote: re.compile(rf"[\\{quote}]") for quote in "\"'"}


class MalformedError(ValueError):
    """A text that cannot be a call. at: index of the first character that does not fit."""

    def __init__(self, at: int) -> None:
        super().__init__(f"no call from character {at} on")
        self.at = at


class BracketScanner:
    """Follows brackets and strings from an opening bracket to the one that closes it.

    Brackets inside strings do not count. Each character is looked at once, however the text grows.
    """

    def __init__(self, start: int, quotes: str = '"') -> None:
        """start: index of the opening bracket. quotes: '"' for JSON, both kinds for Python, where
        parentheses count too."""
        self._at = start
        self._outside = _OUTSIDE[quotes]
        self._quote = ""  # that of the string we are in
        self._open: list[str] = []  # the closers still to come

    def scan(self, text: str) -> int | None:
        """Index behind the closing bracket, None while it has not come.

        text: the text given before, or a longer one that begins with it. Raises MalformedError for
        a closing bracket of another kind, or more than MAX_DEPTH levels.
        """
        while True:
            pattern = _INSIDE[self._quote] if self._quote else self._outside
            found = pattern.search(text, self._at)
            if found is None:
                self._at = len(text)
                return None
            mark, at = found.group(), found.start()
            if mark == "\\":
                if at + 1 == len(text):  # what it escapes has not come
                    self._at = at
                    return None
                self._at = at + 2
                continue
            self._at = at + 1
            if self._quote:
                self._quote = ""
            elif mark in _INSIDE:
                self._quote = mark
            elif mark in _CLOSER:
                self._open.append(_CLOSER[mark])
                if len(self._open) > MAX_DEPTH:
                    raise MalformedError(at)
            elif self._open.pop() != mark:
                raise MalformedError(at)
            elif not self._open:
                return self._at
