"""The tokenizer that a GGUF file describes, rebuilt with the `tokenizers` library.

GGUF holds a vocabulary, merges or scores, and token types. Its `tokenizer.ggml.model` says which of
three algorithms reads them: "gpt2" is byte-level BPE, "llama" SentencePiece BPE, "t5" SentencePiece
unigram."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from astrai.text.gguf_vocabulary import PREFIX, Piece, Vocabulary, read_vocabulary
from astrai.text.sentencepiece import sentencepiece_bpe, sentencepiece_unigram
from astrai.text.tokenizer import Tokenizer
from astrai.text.word_splitting import WORD_SPLITTINGS, WordSplitting

__all__ = ["tokenizer_from_gguf"]

logger = logging.getLogger(__name__)

# Spellings that end a text or a turn (or a file of a repository, in code models) whatever id the
# metadata calls "eos": the list that llama.cpp's llama-vocab.cpp keeps.
_END_SPELLINGS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<|return|>", "<|call|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<end_of_utterance>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)  # fmt: skip
# In OpenAI's harmony format <|end|> ends a message, and an answer may have several.
_HARMONY_ENDS = {"<|return|>", "<|call|>"}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ROLE_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # as the format spells it
    "pad_token": "padding_token_id",
}
# Control tokens of Phi-3 that do not swallow the whitespace behind them; the others do, which its
# tokenizer.json says and GGUF has no key for.
_PHI3_KEEPS_SPACE = {"<unk>", "<s>", "<|endoftext|>"}


def tokenizer_from_gguf(metadata: Mapping[str, Any], vocab_size: int = 0) -> Tokenizer | None:
    """The tokenizer of a GGUF file's metadata; None when it holds none. vocab_size: the model's.

    Raises ValueError that names the key for metadata that is malformed or of an unknown kind."""
    kind = metadata.get(PREFIX + "model")
    if kind is None or kind == "none":
        return None
    build = _KINDS.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise ValueError(f"{PREFIX}model is {kind!r}; supported are {', '.join(_KINDS)}.")
    vocabulary = read_vocabulary(metadata)
    backend = build(vocabulary)
    added = _added_tokens(vocabulary)
    backend.add_tokens(added)
    ids = {role: vocabulary.id_of(key) for role, key in _ROLE_KEYS.items()}
    _add_text_ends(backend, vocabulary, ids["bos_token"], ids["eos_token"])
    try:
        return Tokenizer(
            backend,
            bos_id=ids["bos_token"],
            eos_ids=_end_ids(vocabulary, {token.content for token in added if token.special}),
            special_tokens={r: vocabulary.pieces[i] for r, i in ids.items() if i is not None},
            vocab_size=max(vocab_size, len(vocabulary.pieces)),
        )
    except ValueError as error:
        raise ValueError(f"{PREFIX}tokens: {error}") from error


def _byte_level_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    splitting = _word_splitting(vocabulary)
    merges = vocabulary.merges()
    try:
        backend = tokenizers.Tokenizer(
            models.BPE(vocabulary.ids, merges, ignore_merges=splitting.takes_words_whole)
        )
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"{PREFIX}merges do not fit the vocabulary: {error}.") from error
    backend.pre_tokenizer = splitting.make()
    if splitting.nfc:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _word_splitting(vocabulary: Vocabulary) -> WordSplitting:
    pre = vocabulary.metadata.get(PREFIX + "pre")
    if pre is None:
        logger.warning(
            "%spre is missing, as in files of before May 2024: text is split by the rules that "
            "llama.cpp calls default, which may not be those of this model",
            PREFIX,
        )
        pre = "default"
    splitting = WORD_SPLITTINGS.get(pre) if isinstance(pre, str) else None
    if splitting is None:
        known = ", ".join(sorted(WORD_SPLITTINGS))
        raise ValueError(f"{PREFIX}pre is {pre!r}; supported are {known}.")
    return splitting


_KINDS: dict[str, Callable[[Vocabulary], tokenizers.Tokenizer]] = {
    "gpt2": _byte_level_bpe,
    "llama": sentencepiece_bpe,
    "t5": sentencepiece_unigram,
}


def _added_tokens(vocabulary: Vocabulary) -> list[AddedToken]:
    """Pieces that are found in the text itself, before it is cut into words."""
    is_phi3 = vocabulary.metadata.get("general.architecture") == "phi3"
    is_phi3 = is_phi3 and vocabulary.metadata.get(PREFIX + "model") == "llama"
    added = []
    for piece, kind in zip(vocabulary.pieces, vocabulary.types, strict=True):
        if kind not in (Piece.UNKNOWN, Piece.CONTROL, Piece.USER_DEFINED) or not piece:
            continue
        added.append(
            AddedToken(
                piece,
                special=kind != Piece.USER_DEFINED or piece in _END_SPELLINGS,
                rstrip=is_phi3 and piece not in _PHI3_KEEPS_SPACE,
                normalized=False,
            )
        )
    return added


def _end_ids(vocabulary: Vocabulary, specials: set[str]) -> dict[int, None]:
    """Ids that end a text, in order: those that keys name, then those known by their spelling."""
    found = [vocabulary.id_of(key) for key in _END_KEYS]
    spellings = [text for text in _END_SPELLINGS if text in specials]
    if specials.issuperset(_HARMONY_ENDS):
        spellings = [text for text in spellings if text != "<|end|>"]
    found += [vocabulary.ids[text] for text in spellings]
    return dict.fromkeys(token_id for token_id in found if token_id is not None)


def _add_text_ends(
    backend: tokenizers.Tokenizer, vocabulary: Vocabulary, bos_id: int | None, eos_id: int | None
) -> None:
    """Make add_special_tokens put BOS and EOS where the metadata asks for them. Files that do not
    say get what llama.cpp gives their kind."""
    metadata, pieces = vocabulary.metadata, vocabulary.pieces
    kind, pre = metadata[PREFIX + "model"], metadata.get(PREFIX + "pre")
    splitting = WORD_SPLITTINGS.get(pre) if kind == "gpt2" and isinstance(pre, str) else None
    usually_bos = kind == "llama" or (splitting is not None and splitting.adds_bos)
    pattern, used = ["$A"], []
    # The template names its tokens "bos" and "eos", since real spellings may hold any character.
    if vocabulary.flag("add_bos_token", usually_bos) and bos_id is not None:
        pattern.insert(0, "bos")
        used.append({"id": "bos", "ids": [bos_id], "tokens": [pieces[bos_id]]})
    if vocabulary.flag("add_eos_token", kind == "t5") and eos_id is not None:
        pattern.append("eos")
        used.append({"id": "eos", "ids": [eos_id], "tokens": [pieces[eos_id]]})
    if used:
        backend.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=used)
