"""The tokenizer that a GGUF file describes, rebuilt with the `tokenizers` library.

GGUF holds a vocabulary, merges or scores, token types, and a *name* for the splitting of text into
words (`tokenizer.ggml.pre`); what each name means is written in llama.cpp's src/llama-vocab.cpp and
in the models' own tokenizer.json files, which this module follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from astrai.text.tokenizer import Tokenizer

__all__ = ["tokenizer_from_gguf"]

_PREFIX = "tokenizer.ggml."
# Values of tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Spellings that end a text or a turn (or a file of a repository, in code models) whatever id the
# metadata calls "eos": the list that llama.cpp's llama-vocab.cpp keeps.
_END_SPELLINGS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<end_of_utterance>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)  # fmt: skip
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ROLE_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def tokenizer_from_gguf(metadata: Mapping[str, Any], vocab_size: int = 0) -> Tokenizer | None:
    """The tokenizer of a GGUF file's metadata; None when it holds none. vocab_size: the model's.

    Raises ValueError that names the key for metadata that is malformed or of an unknown kind."""
    kind = metadata.get(_PREFIX + "model")
    if kind is None or kind == "none":
        return None
    tokens = _strings(metadata, "tokens")
    types = metadata.get(_PREFIX + "token_type")
    if types is not None and len(types) != len(tokens):
        raise ValueError(f"{_PREFIX}token_type has {len(types)} entries for {len(tokens)} tokens.")
    vocab: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        vocab.setdefault(token, token_id)
    if kind == "gpt2":
        backend = _byte_level_bpe(metadata, vocab)
    elif kind == "llama":
        backend = _sentencepiece_bpe(metadata, tokens, vocab)
    else:
        raise ValueError(f"{_PREFIX}model is {kind!r}; gpt2 and llama are supported.")
    added = [
        AddedToken(tokens[token_id], special=int(token_type) != _USER_DEFINED, normalized=False)
        for token_id, token_type in enumerate(types if types is not None else ())
        if token_type in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens(added)
    ids = {role: _token_id(metadata, key, len(tokens)) for role, key in _ROLE_KEYS.items()}
    _add_text_ends(backend, metadata, tokens, ids["bos_token"], ids["eos_token"], kind)
    ends = [_token_id(metadata, key, len(tokens)) for key in _END_KEYS]
    specials = {token.content for token in added if token.special}
    ends += [vocab[text] for text in _END_SPELLINGS if text in specials]
    return Tokenizer(
        backend,
        bos_id=ids["bos_token"],
        eos_ids=dict.fromkeys(token_id for token_id in ends if token_id is not None),
        special_tokens={role: tokens[i] for role, i in ids.items() if i is not None},
        vocab_size=max(vocab_size, len(tokens)),
    )


def _byte_level_bpe(metadata: Mapping[str, Any], vocab: dict[str, int]) -> tokenizers.Tokenizer:
    pre = metadata.get(_PREFIX + "pre", "gpt-2")
    make = _PRE_TOKENIZERS.get(pre)
    if make is None:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ValueError(f"{_PREFIX}pre is {pre!r}; supported are {known}.")
    merges = []
    for merge in _strings(metadata, "merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    # Llama 3 takes a word that is in the vocabulary whole, whatever the merges lead to.
    ignore_merges = pre in _LLAMA3_NAMES
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"{_PREFIX}merges do not fit the vocabulary: {error}.") from error
    backend.pre_tokenizer = make()
    if pre in _QWEN2_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(
    metadata: Mapping[str, Any], tokens: list[str], vocab: dict[str, int]
) -> tokenizers.Tokenizer:
    """Merges are not stored: any two pieces whose join is a piece merge, best score first."""
    scores = metadata.get(_PREFIX + "scores")
    if scores is None or len(scores) != len(tokens):
        raise ValueError(f"{_PREFIX}scores must have one entry for each of {len(tokens)} tokens.")
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, token_id in vocab.items():
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in vocab and right in vocab:
                ranked.append((-float(scores[token_id]), vocab[left], vocab[right], left, right))
    ranked.sort()
    unknown = _token_id(metadata, "unknown_token_id", len(tokens))
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            [(left, right) for *_, left, right in ranked],
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = bool(metadata.get(_PREFIX + "add_space_prefix", True))
    replace = normalizers.Replace(" ", "\u2581")
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if adds_space else replace
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _add_text_ends(
    backend: tokenizers.Tokenizer,
    metadata: Mapping[str, Any],
    tokens: list[str],
    bos_id: int | None,
    eos_id: int | None,
    kind: str,
) -> None:
    """Make add_special_tokens put BOS and EOS where the metadata asks for them. Without the keys,
    SentencePiece models begin with BOS and byte-level ones with nothing, as in llama.cpp."""
    adds_bos = metadata.get(_PREFIX + "add_bos_token", kind == "llama") and bos_id is not None
    adds_eos = metadata.get(_PREFIX + "add_eos_token", False) and eos_id is not None
    pattern, used = ["$A"], []
    # The template names its tokens "bos" and "eos", since real spellings may hold any character.
    if adds_bos:
        pattern.insert(0, "bos")
        used.append({"id": "bos", "ids": [bos_id], "tokens": [tokens[bos_id or 0]]})
    if adds_eos:
        pattern.append("eos")
        used.append({"id": "eos", "ids": [eos_id], "tokens": [tokens[eos_id or 0]]})
    if used:
        backend.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=used)


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(_PREFIX + key)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{_PREFIX}{key} must be a list of strings.")
    return value


def _token_id(metadata: Mapping[str, Any], key: str, n_tokens: int) -> int | None:
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_tokens:
        raise ValueError(f"{_PREFIX}{key} is {value!r}, not an id below {n_tokens}.")
    return value


def _gpt2_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


def _words(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_LLAMA3_NAMES: Sequence[str] = ("llama3", "llama-v3", "llama-bpe")
_QWEN2_NAMES: Sequence[str] = ("qwen2", "deepseek-r1-qwen")
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2_words,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": _single_digits,
    **dict.fromkeys(_LLAMA3_NAMES, _words(_LLAMA3_WORDS)),
    **dict.fromkeys(_QWEN2_NAMES, _words(_QWEN2_WORDS)),
}
