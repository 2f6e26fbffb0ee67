"""`Keys`: typed look-ups in config.json or GGUF metadata, whose errors name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Keys", "first_id", "is_positive", "token_ids"]

_LARGEST = 1e30  # of any number in a configuration
_LIMIT = 1 << 31  # sizes are int32 in the kernels' parameters


class Keys:
    """Values of a file, which is input: each is checked. A null counts as absent."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """prefix: put before every key that is looked up."""
        self._values = values
        self._prefix = prefix

    def get(self, key: str) -> Any:
        return self._values.get(self._prefix + key)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1. ValueError where it is missing and there is no default."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{self._prefix}{key} is missing.")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LIMIT:
            raise ValueError(
                f"{self._prefix}{key} must be a whole number from 1 to {_LIMIT - 1}, got {value!r}."
            )
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.get(key) is None else self.size(key)

    def positive(self, key: str, default: float) -> float:
        value = self.get(key)
        if value is None:
            return default
        if not is_positive(value):
            raise ValueError(f"{self._prefix}{key} must be a number above 0, got {value!r}.")
        return float(value)

    def optional_positive(self, key: str) -> float | None:
        return None if self.get(key) is None else self.positive(key, 1.0)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ValueError(f"{self._prefix}{key} must be true or false, got {value!r}.")
        return value


def is_positive(value: object) -> bool:
    """Is it a finite number above 0? Whole numbers in files may be beyond any float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= _LARGEST  # type: ignore[operator]


def token_ids(value: object, key: str) -> tuple[int, ...]:
    """Token ids of a key that may hold null, one id or a list of ids."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ValueError(f"{key} must be a token id or a list of them, got {value!r}.")
    return tuple(ids)


def first_id(value: object) -> int | None:
    ids = token_ids(value, "bos_token_id")
    return ids[0] if ids else None
