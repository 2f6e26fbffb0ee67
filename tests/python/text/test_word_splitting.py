"""Byte-level BPE under each name of tokenizer.ggml.pre: words by hand, ids by transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers
from transformers.models.cohere.tokenization_cohere import CohereTokenizer
from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer
from transformers.models.gpt_neox.tokenization_gpt_neox import GPTNeoXTokenizer
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from astrai import _C
from astrai.text import Tokenizer
from astrai.text.gguf_tokenizer import tokenizer_from_gguf
from astrai.text.token_bytes import BYTE_LEVEL, piece_bytes
from astrai.text.word_splitting import WORD_SPLITTINGS

PROSE = "I'LL pay 12345 for x=3;\n\n  Don't!"
MIXED = "HTMLParser na\u00efve \u6771\u4eac\u30bf\u30ef 1\u00bd a/b\n  c"
# By hand from the rules that the models' authors publish; words are joined with U+00B7.
WORDS = {
    "gpt-2": (
        "I·'·LL· pay· 12345· for· x·=·3·;·\n\n · Don·'t·!",
        "HTMLParser· na\u00efve· \u6771\u4eac\u30bf\u30ef· 1\u00bd· a·/·b·\n · c",
    ),
    "smollm": (
        "I·'·LL· pay· ·1·2·3·4·5· for· x·=·3·;·\n\n · Don·'t·!",
        "HTMLParser· na\u00efve· \u6771\u4eac\u30bf\u30ef· ·1·\u00bd· a·/·b·\n · c",
    ),
    "llama-bpe": (
        "I·'LL· pay· ·123·45· for· x·=·3·;\n\n· · Don·'t·!",
        "HTMLParser· na\u00efve· \u6771\u4eac\u30bf\u30ef· ·1\u00bd· a·/b·\n· · c",
    ),
    "qwen2": (
        "I·'LL· pay· ·1·2·3·4·5· for· x·=·3·;\n\n· · Don·'t·!",
        "HTMLParser· na\u00efve· \u6771\u4eac\u30bf\u30ef· ·1·\u00bd· a·/b·\n· · c",
    ),
    "gpt-4o": (
        "I'LL· pay· ·123·45· for· x·=·3·;\n\n· · Don't·!",
        "HTMLParser· na\u00efve· \u6771\u4eac\u30bf\u30ef· ·1\u00bd· a·/b·\n· · c",
    ),
    "deepseek-v3": (
        "I·'LL· pay· ·123·45· for· x·=·3·;\n\n· · Don·'t·!",
        "HTMLParser· na\u00efve· ·\u6771\u4eac\u30bf\u30ef· ·1\u00bd· a·/b·\n· · c",
    ),
    "deepseek-coder": (
        "I·'·LL· pay· ·1·2·3·4·5· for· x·=·3·;·\n·\n· · Don·'·t·!",
        "HTMLParser· na\u00efve· ·\u6771\u4eac\u30bf\u30ef· ·1·\u00bd· a·/·b·\n· · c",
    ),
    "bloom": (
        "I'LL· pay· 12345· for· x=3;·\n\n · Don't·!",
        "HTMLParser· na\u00efve· \u6771\u4eac\u30bf\u30ef· 1\u00bd· a/b·\n · c",
    ),
    "viking": (
        "I'LL· pay· ·1·2·3·4·5· for· x=·3·;·\n\n · Don't·!",
        "HTMLParser· na\u00efve· \u6771\u4eac\u30bf\u30ef· ·1·\u00bd· a/b·\n · c",
    ),
    "falcon": ("I·'·LL· pay· ·123·45· for· x·=·3·;·\n\n · Don·'·t·!", None),
    "tekken": ("camel·Case· ·1·2· we·'re· x·!!/\n·HTTP· \u00c9t\u00e9", None),
    "bailingmoe": ("x·\n\n· ·1·2· it·'S", None),
    "seed-coder": ("x·;·\n\n· ·1·2· it·'S", None),
    "jais-2": ("x·    ·  · y· ·123·4", None),
    "qwen35": ("\u0928\u092e\u0938\u094d\u0924\u0947· ·1·2", None),
    "deepseek-llm": ("I·'·LL· pay· ·1·2· na·\u00ef·ve· ·\u6771\u4eac", None),
}

TEXTS = st.text(
    st.sampled_from([*"abIL'td 012\n\r\t/.;=\u00e9\u0301\u0928\u094d\u6771\u30bf\U0001f9ea"])
)


def words(name: str, text: str) -> list[str]:
    pieces = WORD_SPLITTINGS[name].make().pre_tokenize_str(text)
    return [piece_bytes(piece, BYTE_LEVEL).decode() for piece, _ in pieces]


@pytest.mark.parametrize("name", WORDS)
def test_text_is_split_as_the_published_rules_say(name: str) -> None:
    for expected in WORDS[name]:
        if expected is not None:
            assert words(name, expected.replace("·", "")) == expected.split("·")


@pytest.mark.parametrize("name", [name for name, pair in WORDS.items() if pair[1] is not None])
def test_the_examples_are_of_the_same_two_texts(name: str) -> None:
    joined = tuple(expected.replace("·", "") for expected in WORDS[name] if expected is not None)
    assert joined == (PROSE, MIXED)


def trained() -> dict[str, Any]:
    """The `model` entry of a byte-level BPE whose merges reach over everything TEXTS has."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [
        PROSE,
        MIXED,
        "a 012 012 it's I'LL\r\n\t\t  b;=./",
        "\u0928\u094d\u0928 e\u0301 \u00e9",
    ]
    tokenizer.train_from_iterator(corpus * 4, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


MODEL = trained()
MERGES = [tuple(merge) for merge in MODEL["merges"]]


def from_gguf(pre: str) -> Tokenizer:
    made = tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": sorted(MODEL["vocab"], key=MODEL["vocab"].__getitem__),
            "tokenizer.ggml.merges": [" ".join(merge) for merge in MERGES],
        }
    )
    assert made is not None
    return made


PUBLISHED: dict[str, Callable[..., Any]] = {
    "gpt-2": GPT2Tokenizer,
    "olmo": GPTNeoXTokenizer,
    "command-r": CohereTokenizer,
    "qwen2": Qwen2Tokenizer,
    "qwen35": Qwen3_5Tokenizer,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_are_those_of_the_tokenizer_in_transformers(name: str) -> None:
    theirs = PUBLISHED[name](vocab=dict(MODEL["vocab"]), merges=list(MERGES)).backend_tokenizer
    ours = from_gguf(name)

    @settings(max_examples=100, deadline=None)
    @given(TEXTS | st.text())
    def agree(text: str) -> None:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, parse_special=False) == expected

    agree()


@pytest.mark.parametrize("name", WORD_SPLITTINGS)
def test_text_survives_every_splitting_whole_and_streamed(name: str) -> None:
    tokenizer, is_composed = from_gguf(name), WORD_SPLITTINGS[name].nfc
    table = _C.TokenTable(tokenizer.token_bytes(), tokenizer.special_flags())

    @settings(max_examples=15, deadline=None)
    @given(TEXTS)
    def survives(text: str) -> None:
        ids = tokenizer.encode(text, parse_special=False)
        decoded = tokenizer.decode(ids)
        if not is_composed:
            assert decoded == text
        assert b"".join(table.piece(token_id) for token_id in ids).decode() == decoded

    survives()


def test_a_word_in_the_vocabulary_is_whole_only_under_the_names_that_take_it_so() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*pre_tokenizers.ByteLevel.alphabet(), "boat"],
        "tokenizer.ggml.merges": ["x y"],  # none that lead to it
    }
    metadata["tokenizer.ggml.tokens"].append("xy")
    for name, splitting in WORD_SPLITTINGS.items():
        made = tokenizer_from_gguf({**metadata, "tokenizer.ggml.pre": name})
        assert made is not None
        assert (len(made.encode("boat")) == 1) == splitting.takes_words_whole


def test_a_file_without_a_name_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*pre_tokenizers.ByteLevel.alphabet(), "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    made = tokenizer_from_gguf(metadata)
    assert made is not None
    assert "tokenizer.ggml.pre is missing" in caplog.text


@pytest.mark.parametrize(
    ("name", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)]
)
def test_bos_is_added_where_the_name_implies_it(name: str, adds: bool) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": ["<s>", *pre_tokenizers.ByteLevel.alphabet(), "ab"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    made = tokenizer_from_gguf(metadata)
    assert made is not None
    assert (made.encode("ab", add_special_tokens=True)[0] == 0) == adds
    never = tokenizer_from_gguf({**metadata, "tokenizer.ggml.add_bos_token": False})
    assert never is not None
    assert never.encode("ab", add_special_tokens=True)[0] != 0
