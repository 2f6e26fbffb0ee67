"""SentencePiece's two algorithms over a GGUF vocabulary, by the `tokenizers` library.

Both see the whole text as one word in which U+2581 stands for a space, with one more in front
where the model was trained so, and spell what no piece covers by byte pieces. Rules follow
https://github.com/google/sentencepiece (src/normalizer.cc, bpe_model.cc, unigram_model.cc)."""

from __future__ import annotations

import re

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from astrai.text.gguf_vocabulary import PREFIX, Piece, Vocabulary

__all__ = ["sentencepiece_bpe", "sentencepiece_unigram"]

_SPACE = "\u2581"


def sentencepiece_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Merges are not stored: any two pieces whose join is a piece merge, best score first."""
    unknown = vocabulary.id_of("unknown_token_id")
    whole = _whole_pieces(vocabulary)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocabulary.ids,
            _ranked_merges(vocabulary),
            unk_token=None if unknown is None else vocabulary.pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
            ignore_merges=bool(whole),  # no merges lead to a user-defined piece
        )
    )
    _add_spaces(backend, vocabulary, whole)
    return backend


def sentencepiece_unigram(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The most probable pieces, scores being logarithms of probabilities."""
    unknown = vocabulary.id_of("unknown_token_id")
    if unknown is None:
        unknown = next(iter(vocabulary.of_type(Piece.UNKNOWN)), None)
    if unknown is None:
        raise ValueError(f"{PREFIX}unknown_token_id is missing, which a unigram tokenizer needs.")
    scored = list(zip(vocabulary.pieces, vocabulary.scores(), strict=True))
    has_bytes = bool(vocabulary.of_type(Piece.BYTE))
    try:
        backend = tokenizers.Tokenizer(models.Unigram(scored, unknown, byte_fallback=has_bytes))
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"{PREFIX}scores do not make a unigram model: {error}.") from error
    _add_spaces(backend, vocabulary, _whole_pieces(vocabulary))
    return backend


def _ranked_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    scores, ids = vocabulary.scores(), vocabulary.ids
    is_normal = [kind == Piece.NORMAL for kind in vocabulary.types]
    ranked: list[tuple[float, int, str, str]] = []
    for piece, token_id in ids.items():
        if not is_normal[token_id]:
            continue
        for at in range(1, len(piece)):
            left, right = ids.get(piece[:at]), ids.get(piece[at:])
            if left is None or right is None or not is_normal[left] or not is_normal[right]:
                continue
            ranked.append((-scores[token_id], token_id, piece[:at], piece[at:]))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _whole_pieces(vocabulary: Vocabulary) -> list[str]:
    """User-defined pieces that hold spaces: SentencePiece takes them before anything merges. The
    others are found in the text as added tokens."""
    found = [vocabulary.pieces[i] for i in vocabulary.of_type(Piece.USER_DEFINED)]
    return sorted((piece for piece in found if _SPACE in piece), key=len, reverse=True)


def _add_spaces(
    backend: tokenizers.Tokenizer, vocabulary: Vocabulary, whole_pieces: list[str]
) -> None:
    """Normalizer, pre-tokenizer and decoder: spaces to U+2581 and back."""
    steps: list[normalizers.Normalizer] = []
    charsmap = vocabulary.charsmap()
    if charsmap is not None:
        try:
            steps.append(normalizers.Precompiled(charsmap))
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{PREFIX}precompiled_charsmap cannot be read: {error}.") from error
    if vocabulary.flag("remove_extra_whitespaces", False):
        # Spaces alone: other whitespace stays.
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    has_prefix = vocabulary.flag("add_space_prefix", True)
    if has_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    if whole_pieces:
        pattern = Regex("|".join(map(re.escape, whole_pieces)))
        backend.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        back.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(back)
