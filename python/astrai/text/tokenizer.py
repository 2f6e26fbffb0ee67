"""`Tokenizer`: text to ids and back for one model, over the `tokenizers` library.

Decoding goes through the bytes of each id (`token_bytes`), the same table that the compiled text
streams use, so streamed and whole text cannot differ. Safe to use from several threads."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence

import tokenizers

from astrai.text.token_bytes import BYTE_LEVEL, decoding_style, piece_bytes

__all__ = ["SPECIAL_MARK", "Tokenizer"]

_SHORT_CHARS = 2048  # encoded in a millisecond or two

# Stands before a special token that is meant as one, in text where the bare spelling is only text.
# Private-use characters around a number drawn at start: no client can write it.
SPECIAL_MARK = f"\U000f0000{secrets.token_hex(8)}\U000f0001"


class Tokenizer:
    """Encodes and decodes for one model."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        special_tokens: Mapping[str, str] | None = None,
        vocab_size: int = 0,
    ) -> None:
        """bos_id, eos_ids: as the model's files name them. special_tokens: strings by role
        ("bos_token", "eos_token", ...), which chat templates see. vocab_size: the model's, where
        it pads its embedding beyond the tokenizer's ids.

        Raises ValueError when the tokenizer's decoder is of a kind without bytes per token."""
        backend.no_truncation()
        backend.no_padding()
        decoder = backend.decoder
        # The decoder's state is its tokenizer.json entry, without the vocabulary around it.
        state = None if decoder is None else json.loads(decoder.__getstate__())
        self._style, self._strips_space = decoding_style(state)
        self._backend = backend
        self._marked: _MarkedBackend | None = None
        self._marked_lock = threading.Lock()
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)
        self.special_tokens = dict(special_tokens or {})
        added = backend.get_added_tokens_decoder()
        own_size = max([backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added)])
        self.vocab_size = max(own_size, vocab_size)
        specials = {i: token.content for i, token in added.items() if token.special}
        self._special_ids = frozenset(specials)
        # The spelling of every special token, longest first.
        self.special_strings = tuple(
            sorted(set(specials.values()), key=lambda text: (-len(text), text))
        )
        self._bytes = [b""] * self.vocab_size
        for piece, token_id in backend.get_vocab(with_added_tokens=True).items():
            self._bytes[token_id] = piece_bytes(piece, self._style)
        for token_id, token in added.items():
            # An added token is its own text, though byte-level ones may look like spelled bytes.
            is_text = self._style == BYTE_LEVEL
            self._bytes[token_id] = (
                token.content.encode("utf-8")
                if is_text
                else piece_bytes(token.content, self._style)
            )

    @property
    def strips_leading_space(self) -> bool:
        """Does the decoding of a whole text drop one space at its start (SentencePiece)?"""
        return self._strips_space

    def encode(
        self, text: str, add_special_tokens: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text.

        add_special_tokens: add what the model's files say a text begins or ends with, such as BOS;
        never a second BOS. parse_special: spellings of special tokens become those tokens; without
        it they are ordinary text. Raises ValueError for text that is not valid Unicode."""
        _check_unicode(text)
        if not parse_special:
            ids = self.encode_marked(text)
            return self._with_special(ids) if add_special_tokens else ids
        encoded = _ids(self._backend, text, add_special_tokens)
        if add_special_tokens and self.bos_id is not None:
            while encoded[:2] == [self.bos_id, self.bos_id]:
                del encoded[0]
        return encoded

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of a text where only special tokens preceded by SPECIAL_MARK are tokens."""
        _check_unicode(text)
        if SPECIAL_MARK not in text and not any(s in text for s in self.special_strings):
            return _ids(self._backend, text)
        if self._marked is None:
            with self._marked_lock:
                self._marked = self._marked or _MarkedBackend(self._backend)
        return self._marked.encode(text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD. Raises ValueError for an id that the
        model does not have."""
        pieces: list[bytes] = []
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"decode: id {token_id} is not below {self.vocab_size}.")
            if not (skip_special_tokens and token_id in self._special_ids):
                pieces.append(self._bytes[token_id])
        if self._strips_space and pieces and pieces[0].startswith(b" "):
            pieces[0] = pieces[0][1:]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_str(self, token_id: int) -> str:
        """Text of one id on its own, special or not."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token_str: id {token_id} is not below {self.vocab_size}.")
        return self._bytes[token_id].decode("utf-8", errors="replace")

    def token_id(self, token: str) -> int | None:
        """Id of a vocabulary entry by its spelling, None when there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def token_bytes(self) -> list[bytes]:
        """The bytes of every id below vocab_size; b"" for ids that have no text."""
        return list(self._bytes)

    def special_flags(self) -> bytes:
        """One byte per id below vocab_size: 1 for special tokens, else 0."""
        return bytes(token_id in self._special_ids for token_id in range(self.vocab_size))

    def _with_special(self, ids: list[int]) -> list[int]:
        """ids with what the model's files put around an empty text: BOS before, EOS after."""
        around = self._backend.encode("", add_special_tokens=True).ids
        before = around[:1] if around and around[0] == self.bos_id else []
        after = around[len(before) :]
        return [*before, *ids, *after]


class _MarkedBackend:
    """A copy of a tokenizer that knows each special token only behind SPECIAL_MARK.

    Renaming keeps everything else as it is: which neighbours are split off, whether a piece counts
    as the first one, and how other added tokens match."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        spec = json.loads(backend.to_str())
        names = {
            token["content"]: token["id"] for token in spec["added_tokens"] if token["special"]
        }
        for token in spec["added_tokens"]:
            if token["special"]:
                token["content"] = SPECIAL_MARK + token["content"]
                token["normalized"] = False
        spec["post_processor"] = None  # it may name tokens that are now called otherwise
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
        # A renamed token is not in the model's vocabulary and may have got a new id.
        self._true_id = {
            self._backend.token_to_id(SPECIAL_MARK + name): token_id
            for name, token_id in names.items()
        }

    def encode(self, text: str) -> list[int]:
        ids = _ids(self._backend, text)
        return [self._true_id.get(token_id, token_id) for token_id in ids]


def _ids(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """Ids of a text. A long one goes as a batch of one, which lets other threads run meanwhile:
    `encode` holds the interpreter for as long as it takes, a second for a megabyte."""
    if len(text) <= _SHORT_CHARS:
        short: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
        return short
    batch = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = batch[0].ids
    return ids


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text has a lone surrogate at index {error.start}, which no encoding can hold."
        ) from None
