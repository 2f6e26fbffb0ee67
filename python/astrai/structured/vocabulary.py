"""A model's tokens as llguidance sees them: the exact bytes of every id, and one id more.

The extra id, the vocabulary's size, stands for "the answer may end here". Which real tokens end an
answer differs from request to request (stop_token_ids, ignore_eos), so they are filled in by
`MaskTable` where the extra id is allowed; no real id is an end to llguidance.
"""

from __future__ import annotations

from astrai.text import Tokenizer

__all__ = ["Vocabulary"]

_FORCED_BYTES = 64  # of a text that a grammar forces, tokenised at a time


class _Tokens:
    """The attributes that `llguidance.LLTokenizer` reads of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        known = tokenizer.token_bytes()[:vocab_size]
        flags = tokenizer.special_flags()[:vocab_size]
        self.tokens = known + [b""] * (vocab_size - len(known)) + [b"<|end of the answer|>"]
        self.eos_token_id = vocab_size
        # A special token spells no text, so no grammar's text may be spelled with it.
        self.special_token_ids = [i for i, is_special in enumerate(flags) if is_special]
        self.special_token_ids.append(vocab_size)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        # Where the grammar forces a text, its usual tokens are the only ones allowed.
        raw = text.encode() if isinstance(text, str) else text
        known = raw[:_FORCED_BYTES].decode("utf-8", errors="ignore")
        return self._tokenizer.encode(known, parse_special=False)


class Vocabulary:
    """llguidance's view of a tokenizer, and what a probe needs to have the same."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Takes about 10 us a token. Raises ImportError without llguidance."""
        import llguidance  # only when a request has a grammar

        tokens = _Tokens(tokenizer, vocab_size)
        self.tokens: list[bytes] = tokens.tokens
        self.special_ids: list[int] = tokens.special_token_ids
        self.llguidance = llguidance.LLTokenizer(
            tokens,  # type: ignore[arg-type]  # read by attribute
            n_vocab=vocab_size + 1,
            eos_token=vocab_size,
        )
