"""Tokenizer: encoding, decoding and the byte table, from folders and from GGUF metadata."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from toy_tokenizers import TEMPLATE, byte_level, gguf_metadata, save_folder, sentencepiece_metadata

from astrai.text import ChatTemplate, Tokenizer
from astrai.text.gguf_tokenizer import tokenizer_from_gguf
from astrai.text.hf_tokenizer import template_sources, tokenizer_from_folder

TOY = byte_level()
AWKWARD = [
    "",
    " ",
    "the boat",
    "don't 007",
    "\u00e9\u00df\u8a9e\U0001f9ea",
    "a\x00b\r\n\t ",
    "x" * 300,
]


def toy(**metadata: Any) -> Tokenizer:
    made = tokenizer_from_gguf({**gguf_metadata(TOY), **metadata})
    assert made is not None
    return made


def sentencepiece(**metadata: Any) -> Tokenizer:
    made = tokenizer_from_gguf({**sentencepiece_metadata(), **metadata})
    assert made is not None
    return made


@given(st.text())
def test_text_survives_encoding_and_decoding(text: str) -> None:
    tokenizer = toy()
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@pytest.mark.parametrize("text", AWKWARD)
def test_gguf_metadata_gives_the_ids_of_the_tokenizer_it_came_from(text: str) -> None:
    assert toy().encode(text) == TOY.encode(text, add_special_tokens=False).ids


def test_digits_are_split_one_by_one_only_where_the_pre_tokenizer_says_so() -> None:
    merged = gguf_metadata(TOY)
    merged["tokenizer.ggml.tokens"][300] = "12"
    merged["tokenizer.ggml.merges"] = ["1 2"]
    smollm = tokenizer_from_gguf(merged)
    gpt2 = tokenizer_from_gguf({**merged, "tokenizer.ggml.pre": "gpt-2"})
    assert smollm is not None and gpt2 is not None
    assert len(smollm.encode("12")) == 2
    assert gpt2.encode("12") == [300]


@pytest.mark.parametrize(("pre", "n_digits"), [("llama-bpe", 3), ("qwen2", 1)])
def test_word_patterns_group_digits_as_their_models_do(pre: str, n_digits: int) -> None:
    metadata = gguf_metadata(TOY, pre)
    metadata["tokenizer.ggml.tokens"][300:302] = ["12", "123"]
    metadata["tokenizer.ggml.merges"] = ["1 2", "12 3"]
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer is not None
    pieces = [tokenizer.token_str(i) for i in tokenizer.encode("1234")]
    assert pieces[0] == "123"[:n_digits]


def test_special_spellings_are_tokens_only_when_parsed() -> None:
    tokenizer = toy()
    assert tokenizer.encode("x<|im_end|>").count(2) == 1
    plain = tokenizer.encode("x<|im_end|>", parse_special=False)
    assert not {0, 1, 2} & set(plain)
    assert tokenizer.decode(plain) == "x<|im_end|>"


def test_added_tokens_that_are_not_special_stay_tokens_without_parsing() -> None:
    tokenizer = toy()
    think = tokenizer.token_id("<think>")
    assert think in tokenizer.encode("<think>", parse_special=False)
    assert think in tokenizer.encode("<think><|im_end|>", parse_special=False)


def test_special_tokens_are_left_out_of_text_unless_asked_for() -> None:
    tokenizer = toy()
    ids = tokenizer.encode("<|im_start|>the<|im_end|>")
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>the<|im_end|>"


def test_bos_is_added_once_and_only_when_the_model_says_so() -> None:
    assert toy().encode("the", add_special_tokens=True)[0] != 1
    adding = toy(**{"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    ids = adding.encode("the", add_special_tokens=True)
    assert (ids[0], ids[-1]) == (1, 2)
    assert adding.encode("<|im_start|>the", add_special_tokens=True) == ids
    assert adding.encode("the", add_special_tokens=True, parse_special=False) == ids
    assert adding.encode("the") == ids[1:-1]


@pytest.mark.parametrize("tokenizer", [toy(), sentencepiece()], ids=["bytes", "sentencepiece"])
def test_the_byte_table_spells_what_decode_gives(tokenizer: Tokenizer) -> None:
    table = tokenizer.token_bytes()
    assert len(table) == tokenizer.vocab_size == len(tokenizer.special_flags())
    for text in AWKWARD:
        ids = tokenizer.encode(text)
        joined = b"".join(table[i] for i in ids).decode()
        assert joined.removeprefix(" " * tokenizer.strips_leading_space) == text
        assert tokenizer.decode(ids) == text


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    padded = tokenizer_from_gguf(gguf_metadata(TOY), vocab_size=400)
    assert padded is not None
    assert padded.vocab_size == 400
    assert padded.token_bytes()[399] == b""
    assert padded.decode([399]) == ""


@pytest.mark.parametrize("token_id", [-1, 10**9])
def test_decode_refuses_ids_that_the_model_does_not_have(token_id: int) -> None:
    with pytest.raises(ValueError, match=str(token_id)):
        toy().decode([token_id])


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogate at index 5"):
        toy().encode("boat \ud83d")


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = sentencepiece()
    pieces = [tokenizer.token_str(i) for i in tokenizer.encode("the boat")]
    assert pieces == [" the", " boat"]
    ids = tokenizer.encode("the \u8a9e", add_special_tokens=True)
    assert ids[0] == tokenizer.bos_id == 1
    assert tokenizer.token_bytes()[ids[-1]] == "\u8a9e".encode()[-1:]
    assert tokenizer.decode(ids) == "the \u8a9e"


def test_sentencepiece_prefix_space_can_be_off() -> None:
    tokenizer = sentencepiece(**{"tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.token_str(tokenizer.encode("the")[-1]) == "he"
    assert not tokenizer.strips_leading_space


def test_end_ids_are_those_of_every_key_and_of_known_spellings() -> None:
    assert set(toy().eos_ids) == {2, 0}  # <|im_end|> by its key, <|endoftext|> by its spelling
    with_eot = toy(**{"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 2})
    assert set(with_eot.eos_ids) == {0, 2}


def test_a_turn_end_of_the_wrong_type_ends_texts_all_the_same() -> None:
    types = gguf_metadata(TOY)["tokenizer.ggml.token_type"].copy()
    types[2] = 4  # user-defined, as some converters write it
    made = toy(**{"tokenizer.ggml.token_type": types, "tokenizer.ggml.eos_token_id": 0})
    assert set(made.eos_ids) == {0, 2}
    assert made.decode(made.encode("the<|im_end|>")) == "the"


def test_the_end_of_a_message_is_no_end_in_harmony() -> None:
    metadata = gguf_metadata(TOY)
    metadata["tokenizer.ggml.tokens"][:3] = ["<|end|>", "<|return|>", "<|call|>"]
    made = tokenizer_from_gguf({**metadata, "tokenizer.ggml.eos_token_id": 1})
    assert made is not None
    assert set(made.eos_ids) == {1, 2}


def test_an_unknown_pre_tokenizer_is_told_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"'unheard-of'; supported are .*llama-bpe.*qwen2.*tekken"):
        toy(**{"tokenizer.ggml.pre": "unheard-of"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "bert"),
        ("pre", "unheard-of"),
        ("tokens", []),
        ("tokens", 7),
        ("token_type", [1]),
        ("merges", ["nothere neither"]),
        ("eos_token_id", 10**6),
        ("eos_token_id", -1),
        ("bos_token_id", "one"),
    ],
)
def test_malformed_gguf_metadata_is_an_error_that_names_the_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"tokenizer.ggml.{key}"):
        toy(**{f"tokenizer.ggml.{key}": value})


def test_gguf_without_a_tokenizer_gives_none() -> None:
    assert tokenizer_from_gguf({}) is None


def test_folder_gives_ids_roles_and_ends(tmp_path: Path) -> None:
    save_folder(tmp_path, TOY)
    tokenizer = tokenizer_from_folder(tmp_path)
    assert tokenizer is not None
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.encode("the boat") == toy().encode("the boat")


def test_truncation_in_the_file_does_not_cut_prompts(tmp_path: Path) -> None:
    cut = tokenizers.Tokenizer.from_str(TOY.to_str())
    cut.enable_truncation(2)
    save_folder(tmp_path, cut)
    tokenizer = tokenizer_from_folder(tmp_path)
    assert tokenizer is not None
    assert len(tokenizer.encode("x y z w")) > 2


def test_folder_without_tokenizer_files_gives_none(tmp_path: Path) -> None:
    assert tokenizer_from_folder(tmp_path) is None


def test_other_tokenizer_formats_are_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(ValueError, match=r"tokenizer\.model.*tokenizer\.json"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"model": 3}', "[]"])
def test_broken_tokenizer_json_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        tokenizer_from_folder(tmp_path)


def test_a_decoder_without_bytes_per_token_is_refused(tmp_path: Path) -> None:
    word_piece = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0}, unk_token="a"))
    word_piece.decoder = tokenizers.decoders.WordPiece()
    save_folder(tmp_path, word_piece)
    with pytest.raises(ValueError, match="decoder is"):
        tokenizer_from_folder(tmp_path)


@given(st.lists(st.integers(0, 2), max_size=6))
def test_without_a_decoder_tokens_are_words_with_spaces_between(ids: list[int]) -> None:
    words = tokenizers.models.WordLevel({"a": 0, "bc": 1, "d": 2}, unk_token="a")
    backend = tokenizers.Tokenizer(words)
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode(ids) == backend.decode(ids)
    pieces = tokenizer.token_bytes()
    assert b"".join(pieces[i] for i in ids).decode().removeprefix(" ") == backend.decode(ids)
    assert tokenizer.strips_leading_space


@pytest.mark.parametrize("place", ["jinja", "config", "named", "json"])
def test_template_is_found_in_every_place_and_shape(tmp_path: Path, place: str) -> None:
    config: dict[str, Any] = {}
    if place == "jinja":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
        config["chat_template"] = "the older one"
    elif place == "config":
        config["chat_template"] = TEMPLATE
    elif place == "named":
        named = [("default", TEMPLATE), ("tool_use", "t")]
        config["chat_template"] = [{"name": n, "template": t} for n, t in named]
    else:
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    save_folder(tmp_path, TOY, **config)
    found = template_sources(tmp_path)
    assert found is not None
    assert found[1]["default"] == TEMPLATE
    assert ("tool_use" in found[1]) == (place == "named")


def test_templates_beside_the_default_one_have_the_names_of_their_files(tmp_path: Path) -> None:
    save_folder(tmp_path, TOY)
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools | length }}")
    found = template_sources(tmp_path)
    assert found is not None
    template = ChatTemplate(found[1])
    assert template.render([{"role": "user", "content": "x"}]) == "plain"
    tool = {"type": "function", "function": {"name": "f"}}
    assert template.render([{"role": "user", "content": "x"}], [tool]) == "1"


def test_template_of_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    save_folder(tmp_path, TOY, chat_template=[{"name": "default"}])
    with pytest.raises(ValueError, match="chat_template"):
        template_sources(tmp_path)


def test_many_threads_encode_alike() -> None:
    tokenizer = toy()
    text = "x<|im_end|> the boat"
    expected = (tokenizer.encode(text), toy().encode(text, parse_special=False))
    with ThreadPoolExecutor(8) as pool:
        both = pool.map(
            lambda _: (tokenizer.encode(text), tokenizer.encode(text, parse_special=False)),
            range(64),
        )
        assert all(result == expected for result in both)


@pytest.mark.model
def test_default_model_tokenizes_every_awkward_string_as_the_reference(
    default_model: Any, goldens: Path
) -> None:
    tokenizer = default_model.tokenizer
    lines = (goldens / "smollm2_tokenizer.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) > 50
    for record in records:
        assert tokenizer.encode(record["text"]) == record["ids"], record["text"]
        decoded = tokenizer.decode(record["ids"], skip_special_tokens=False)
        assert decoded == record["decoded"], record["text"]


def test_a_long_text_has_the_ids_that_the_library_gives_it() -> None:
    made = toy()
    text = "\u00e9 the boat, don't 007 " * 500
    assert made.encode(text) == TOY.encode(text, add_special_tokens=False).ids
    assert made.encode(text, parse_special=False) == made.encode(text)
