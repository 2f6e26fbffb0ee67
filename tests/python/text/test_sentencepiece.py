"""Tokenizers rebuilt from GGUF metadata against the sentencepiece library, trained here."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai import _C
from astrai.text import Tokenizer
from astrai.text.gguf_tokenizer import tokenizer_from_gguf

CORPUS = [
    "the boat left the harbour at noon",
    "abab  aab   b ba",
    "if x:\n    return x\n",
    "\u00fcber Gr\u00f6\u00dfe na\u00efve \u6771\u4eac",
]
MODELS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe"},
    "bpe_without_prefix": {"model_type": "bpe", "add_dummy_prefix": False},
    "bpe_with_runs_of_spaces": {
        "model_type": "bpe",
        "add_dummy_prefix": False,
        "user_defined_symbols": ["\u2581\u2581", "\u2581\u2581\u2581", "\u2581\u2581\u2581\u2581"],
    },
    "unigram": {"model_type": "unigram"},
    "unigram_normalised": {
        "model_type": "unigram",
        "normalization_rule_name": "nmt_nfkc",
        "remove_extra_whitespaces": True,
    },
    "unigram_without_bytes": {"model_type": "unigram", "byte_fallback": False},
}
TEXTS = st.text(
    st.sampled_from([*"theboaln  ab:\nx\u00fc\u00df\u6771\u4eac\uff21\u2460\U0001f9ea"])
)


@cache
def model(name: str) -> sentencepiece.SentencePieceProcessor:
    written = io.BytesIO()
    settings = {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
        "vocab_size": 330,
        "hard_vocab_limit": False,
        "minloglevel": 2,
        **MODELS[name],
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20), model_writer=written, **settings
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, value) of the fields of a protocol buffer message."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at

    at = 0
    while at < len(message):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
            yield key >> 3, value
            continue
        length = 4
        if key & 7 == 2:
            length, at = varint(at)
        yield key >> 3, message[at : at + length]
        at += length


def charsmap(processor: sentencepiece.SentencePieceProcessor) -> bytes:
    """normalizer_spec.precompiled_charsmap of sentencepiece_model.proto."""
    proto = dict(fields(processor.serialized_model_proto()))
    spec = proto[3]
    assert isinstance(spec, bytes)
    found = dict(fields(spec)).get(2, b"")
    assert isinstance(found, bytes)
    return found


def metadata(name: str) -> dict[str, Any]:
    """What the usual converter writes of a model."""
    processor, options = model(name), MODELS[name]
    ids = range(processor.get_piece_size())
    types = []
    for token_id in ids:
        kind = 1
        if processor.is_unknown(token_id):
            kind = 2
        elif processor.is_control(token_id):
            kind = 3
        elif processor.id_to_piece(token_id) in options.get("user_defined_symbols", ()):
            kind = 4
        elif processor.is_byte(token_id):
            kind = 6
        types.append(kind)
    made = {
        "tokenizer.ggml.model": "llama" if options["model_type"] == "bpe" else "t5",
        "tokenizer.ggml.tokens": [processor.id_to_piece(token_id) for token_id in ids],
        "tokenizer.ggml.scores": np.array([processor.get_score(i) for i in ids], np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        "tokenizer.ggml.add_space_prefix": options.get("add_dummy_prefix", True),
        "tokenizer.ggml.remove_extra_whitespaces": options.get("remove_extra_whitespaces", False),
    }
    if rules := charsmap(processor):
        made["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(rules, np.uint8)
    return made


def rebuilt(name: str, **changes: Any) -> Tokenizer:
    prefixed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    made = tokenizer_from_gguf({**metadata(name), **prefixed})
    assert made is not None
    return made


@pytest.mark.parametrize("name", MODELS)
def test_ids_and_text_are_those_of_sentencepiece(name: str) -> None:
    theirs, ours = model(name), rebuilt(name)
    table = _C.TokenTable(ours.token_bytes(), ours.special_flags())

    @settings(max_examples=200, deadline=None)
    @given(TEXTS | st.text(st.characters(exclude_categories=["Cs", "Cc"])))
    def agree(text: str) -> None:
        ids = theirs.encode(text)
        assert ours.encode(text, parse_special=False) == ids
        if theirs.unk_id() in ids:  # sentencepiece spells it, we leave it out
            return
        assert ours.decode(ids) == theirs.decode(ids)
        streamed = b"".join(table.piece(token_id) for token_id in ids).decode()
        assert streamed.removeprefix(" " * ours.strips_leading_space) == ours.decode(ids)

    agree()


def test_bos_and_eos_are_those_of_the_kind_where_the_file_does_not_say() -> None:
    bpe, unigram = rebuilt("bpe"), rebuilt("unigram")
    assert bpe.encode("the", add_special_tokens=True)[0] == bpe.bos_id
    assert bpe.encode("the", add_special_tokens=True)[-1] not in bpe.eos_ids
    assert unigram.encode("the", add_special_tokens=True)[0] != unigram.bos_id
    assert unigram.encode("the", add_special_tokens=True)[-1] in unigram.eos_ids


def test_control_tokens_of_phi3_swallow_the_space_behind_them() -> None:
    tokens = [*metadata("bpe")["tokenizer.ggml.tokens"], "<|user|>", "<|endoftext|>"]
    extended = {
        **metadata("bpe"),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.append(metadata("bpe")["tokenizer.ggml.scores"], [0, 0]),
        "tokenizer.ggml.token_type": np.append(
            metadata("bpe")["tokenizer.ggml.token_type"], [3, 3]
        ),
    }
    plain = tokenizer_from_gguf(extended)
    phi3 = tokenizer_from_gguf({**extended, "general.architecture": "phi3"})
    assert plain is not None and phi3 is not None
    assert phi3.encode("<|user|>\n the") == phi3.encode("<|user|>the")
    assert plain.encode("<|user|>\n the") != plain.encode("<|user|>the")
    assert phi3.encode("<|endoftext|>\nthe") != phi3.encode("<|endoftext|>the")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("bpe", "scores", None),
        ("bpe", "scores", np.zeros(3, np.float32)),
        ("bpe", "scores", ["a"]),
        ("bpe", "token_type", "text"),
        ("bpe", "add_space_prefix", 7),
        ("unigram", "add_eos_token", "yes"),
        ("unigram", "unknown_token_id", 10**6),
        ("unigram_normalised", "precompiled_charsmap", np.arange(5, dtype=np.uint8)),
        ("unigram_normalised", "precompiled_charsmap", np.full(64, 255, np.uint8)),
        ("unigram_normalised", "precompiled_charsmap", "text"),
        ("unigram_normalised", "precompiled_charsmap", np.zeros(8, np.float32)),
    ],
)
def test_malformed_metadata_is_named(name: str, key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"tokenizer.ggml.{key}"):
        rebuilt(name, **{key: value})
