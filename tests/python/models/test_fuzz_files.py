"""Broken files of every kind: a ModelLoadError or a model, never another error, never much memory.

The files are whole ones of a tiny model with something changed: bits, bytes, lengths, counts and
offsets of the binary headers, or any value of the JSON files."""

from __future__ import annotations

import json
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import changed_bytes, changed_json
from toy_models import llama, write_gguf

from astrai.models import ModelLoadError
from astrai.models.checkpoint import Checkpoint, open_folder, open_gguf
from astrai.models.weights import check_weights

SPARE_BYTES = 2 << 30  # beyond what the process has mapped; threads take some of it
FUZZ = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Let no test map more than SPARE_BYTES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def whole_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A GGUF file with a tokenizer of 96 tokens and a template."""
    path = tmp_path_factory.mktemp("whole") / "m.gguf"

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(
            ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(60)), *"abc"]
        )
        writer.add_token_scores([0.0] * 66)
        writer.add_token_types([2, 3, 3] + [6] * 60 + [1] * 3)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")

    write_gguf(path, llama(), gguf.GGMLQuantizationType.Q8_0, extra)
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two shards with an index, tokenizer and template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("whole")
    llama().save_pretrained(folder, max_shard_size="100KB")
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "</s>": 3}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": "{{ messages[0].content }}"})
    )
    return folder


def read_whole(checkpoint: Checkpoint) -> None:
    check_weights(checkpoint.config, checkpoint.weights)
    for name in checkpoint.weights.names():
        checkpoint.weights.copy_into(name, torch.empty(checkpoint.weights.shape(name)))


def opens_or_refuses(path: Path) -> None:
    try:
        read_whole(open_gguf(path) if path.is_file() else open_folder(path))
    except ModelLoadError as error:
        assert str(error)


@FUZZ
@given(data=st.data())
def test_gguf_files(data: st.DataObject, whole_gguf: bytes, tmp_path: Path) -> None:
    header_bytes = whole_gguf.index(b"output_norm.weight") + 200
    path = tmp_path / "broken.gguf"
    path.write_bytes(changed_bytes(data.draw, whole_gguf, header_bytes))
    opens_or_refuses(path)


@FUZZ
@given(data=st.data())
def test_safetensors_files(data: st.DataObject, whole_folder: Path, tmp_path: Path) -> None:
    folder = fresh(whole_folder, tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    whole = shard.read_bytes()
    header_bytes = 8 + struct.unpack_from("<Q", whole)[0]
    shard.write_bytes(changed_bytes(data.draw, whole, header_bytes))
    opens_or_refuses(folder)


@FUZZ
@given(data=st.data())
def test_safetensors_headers_that_are_json(
    data: st.DataObject, whole_folder: Path, tmp_path: Path
) -> None:
    folder = fresh(whole_folder, tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    whole = shard.read_bytes()
    length = struct.unpack_from("<Q", whole)[0]
    header = changed_json(data.draw, json.loads(whole[8 : 8 + length]))
    text = json.dumps(header).encode()
    shard.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])
    opens_or_refuses(folder)


def fresh(whole_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "broken"
    shutil.copytree(whole_folder, folder, dirs_exist_ok=True)
    return folder


JSON_FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def test_a_tokenizer_over_which_its_library_panics_is_refused(
    whole_folder: Path, tmp_path: Path
) -> None:
    folder = fresh(whole_folder, tmp_path)
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["model"]["continuing_subword_prefix"] = "longer than any token"
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ModelLoadError, match="cannot be read as a tokenizer"):
        open_folder(folder)


@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors.index.json"])
def test_json_files(name: str, whole_folder: Path, tmp_path: Path) -> None:
    folder = fresh(whole_folder, tmp_path)
    whole = json.loads((folder / name).read_text())

    @FUZZ
    @given(data=st.data())
    def survives(data: st.DataObject) -> None:
        (folder / name).write_text(json.dumps(changed_json(data.draw, whole)))
        opens_or_refuses(folder)

    survives()


@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "text",
    ["", "\x00", "{", "[" * 100_000, '{"a":' * 100_000, "9" * 100_000, '"\\ud800"', "\ufeff{}"],
    ids=["empty", "nul", "cut", "lists", "objects", "digits", "surrogate", "mark"],
)
def test_text_that_is_no_json(name: str, text: str, whole_folder: Path, tmp_path: Path) -> None:
    folder = fresh(whole_folder, tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(ModelLoadError, match=name):
        read_whole(open_folder(folder))


def test_the_whole_files_open(whole_gguf: bytes, whole_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole_gguf)
    for checkpoint in (open_gguf(path), open_folder(whole_folder)):
        read_whole(checkpoint)
        assert checkpoint.tokenizer is not None
        assert checkpoint.chat_template is not None
