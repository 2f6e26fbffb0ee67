"""The keys that open the server, as clients carry them in their headers."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.types import Scope


class KeyRing:
    """Compares in constant time: digests of equal length, and every key with every one given."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Empty keys open nothing; without any key the server is open."""
        keys = tuple(keys)
        self.is_open = not keys
        self._digests = [sha256(key.encode()).digest() for key in keys if key]

    def admits(self, scope: Scope) -> bool:
        """Does a header of this request carry a key? Clients of some agents send one in each."""
        given = [sha256(key).digest() for key in _given_keys(scope)]
        matches = [hmac.compare_digest(g, known) for g in given for known in self._digests]
        return self.is_open or any(matches)


def _given_keys(scope: Scope) -> list[bytes]:
    keys = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            keys.append(value)
        elif name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(token.strip())
    # A request may hold any number of headers; two of each kind are more than any client sends.
    return keys[:4]
