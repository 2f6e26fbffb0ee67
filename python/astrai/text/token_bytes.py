"""The exact bytes that each token id stands for, by the tokenizer's own way of decoding.

Three ways cover the models served: *byte-level* BPE, whose vocabulary spells bytes in an alphabet
of 256 printable characters (Radford et al., GPT-2, encoder.py `bytes_to_unicode`), *SentencePiece*
style, where U+2581 is a space and <0xNN> one byte, and whole *words* with a space between them,
which is what the `tokenizers` library makes of a file without a decoder. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["BYTE_LEVEL", "SENTENCE_PIECE", "WORDS", "decoding_style", "piece_bytes"]

BYTE_LEVEL = "byte-level"
SENTENCE_PIECE = "sentencepiece"
WORDS = "words"

_SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte. Printable bytes spell themselves, the others take U+0100 and up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(list(others))})
    return alphabet


_ALPHABET = _byte_alphabet()
# Latin-1 characters are the bytes of the same number; those the alphabet does not use as such map
# beyond Latin-1, so that encoding fails on them.
_TO_LATIN_1 = {chr(code): "\uffff" for code in range(0x100) if chr(code) not in _ALPHABET}
_TO_LATIN_1.update({character: chr(byte) for character, byte in _ALPHABET.items()})
_BYTE_SPELLING = str.maketrans(_TO_LATIN_1)


def decoding_style(decoder: Mapping[str, Any] | None) -> tuple[str, bool]:
    """(style, strips the first space) of a tokenizer.json `decoder` entry.

    Raises ValueError for a decoder whose tokens have no bytes of their own."""
    steps = _flat_steps(decoder)
    kinds = [step.get("type") for step in steps]
    if not kinds:
        return WORDS, True
    if kinds == ["ByteLevel"]:
        return BYTE_LEVEL, False
    if kinds == ["Metaspace"]:
        if steps[0].get("replacement", _SPACE_MARK) != _SPACE_MARK:
            raise ValueError("its Metaspace decoder replaces another character than U+2581.")
        # Older files say add_prefix_space, newer ones prepend_scheme.
        scheme = steps[0].get("prepend_scheme")
        adds = steps[0].get("add_prefix_space", True) if scheme is None else scheme != "never"
        return SENTENCE_PIECE, bool(adds)
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return SENTENCE_PIECE, any(step.get("type") == "Strip" for step in steps)
    raise ValueError(
        f"its decoder is {kinds}; byte-level and SentencePiece decoders are supported, or none."
    )


def piece_bytes(piece: str, style: str) -> bytes:
    """The bytes of one vocabulary entry; an added token's are its own text."""
    if style == BYTE_LEVEL:
        try:
            return piece.translate(_BYTE_SPELLING).encode("latin-1")
        except UnicodeEncodeError:  # not spelled in the alphabet: text as it stands
            return piece.encode("utf-8")
    if style == WORDS:
        return f" {piece}".encode()
    match = _BYTE_PIECE.match(piece)
    if match:
        return bytes([int(match.group(1), 16)])
    return piece.replace(_SPACE_MARK, " ").encode("utf-8")


def _flat_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder.get("decoders", []) for step in _flat_steps(inner)]
    return [decoder]
