"""The vocabulary of a GGUF file: `tokenizer.ggml.*` metadata, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = ["PREFIX", "Piece", "Vocabulary", "read_vocabulary"]

PREFIX = "tokenizer.ggml."


class Piece(IntEnum):
    """Values of tokenizer.ggml.token_type, which are SentencePiece's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Pieces and settings. Lists have one entry per token id."""

    metadata: Mapping[str, Any]
    pieces: list[str]
    ids: dict[str, int]  # the first id of each piece
    types: list[int]  # Piece, NORMAL where the file says nothing

    def of_type(self, kind: Piece) -> list[int]:
        """Ids of this type."""
        return [token_id for token_id, value in enumerate(self.types) if value == kind]

    def id_of(self, key: str) -> int | None:
        """The id that a key such as "eos_token_id" names, None without the key."""
        value = self.metadata.get(PREFIX + key)
        if value is None:
            return None
        n_pieces = len(self.pieces)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_pieces:
            raise ValueError(f"{PREFIX}{key} is {value!r}, not an id below {n_pieces}.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(PREFIX + key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"{PREFIX}{key} is {value!r}, not true or false.")
        return value

    def scores(self) -> list[float]:
        """The score of each piece. Raises ValueError where they are missing or no numbers."""
        values = self.metadata.get(PREFIX + "scores")
        scores = _numbers(values)
        if scores is None or len(scores) != len(self.pieces):
            raise ValueError(
                f"{PREFIX}scores must have one number for each of {len(self.pieces)} tokens."
            )
        return [float(score) for score in scores]

    def merges(self) -> list[tuple[str, str]]:
        merges = []
        for merge in _strings(self.metadata, "merges"):
            # A piece may begin with a space, in vocabularies that do not spell bytes.
            at = merge.find(" ", 1)
            merges.append((merge[:at], merge[at + 1 :]) if at > 0 else (merge, ""))
        return merges

    def charsmap(self) -> bytes | None:
        """SentencePiece's compiled rules of normalisation, None without any."""
        value = self.metadata.get(PREFIX + "precompiled_charsmap")
        if value is None:
            return None
        if str(getattr(value, "dtype", None)) not in ("uint8", "int8"):
            raise ValueError(f"{PREFIX}precompiled_charsmap must be an array of bytes.")
        rules: bytes = value.tobytes()
        return rules or None


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises ValueError that names the key for one that is missing or malformed."""
    pieces = _strings(metadata, "tokens")
    value = metadata.get(PREFIX + "token_type")
    types = [int(Piece.NORMAL)] * len(pieces) if value is None else _numbers(value)
    if types is None or len(types) != len(pieces):
        n_types = "no" if types is None else len(types)
        raise ValueError(f"{PREFIX}token_type has {n_types} entries for {len(pieces)} tokens.")
    ids: dict[str, int] = {}
    for token_id, piece in enumerate(pieces):
        ids.setdefault(piece, token_id)
    return Vocabulary(metadata, pieces, ids, types)


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(PREFIX + key)
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(piece, str) for piece in value)
    ):
        raise ValueError(f"{PREFIX}{key} must be a list of strings.")
    return value


def _numbers(value: object) -> list[Any] | None:
    """An array of numbers as a list, None for anything else. GGUF gives numpy arrays."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "dtype") else None
