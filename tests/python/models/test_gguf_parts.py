"""Split GGUF files: any part names the model, and a wrong part is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest
import torch
from toy_models import llama, reference_logits, write_gguf

from astrai.models import ModelLoadError, load_model
from astrai.models.gguf_file import GGUFFile
from astrai.models.gguf_parts import gguf_in_folder

IDS = [3, 17, 90, 4, 61, 33]


def part_path(folder: Path, number: int, count: int = 3) -> Path:
    return folder / f"toy-{number:05}-of-{count:05}.gguf"


def write_split(folder: Path, seed: int = 0, count: int = 3, n_tensors: int | None = None) -> None:
    """A llama model in parts, as gguf-split writes it: all metadata in the first one."""
    whole_path = folder / "whole.gguf"
    write_gguf(whole_path, llama(seed))
    whole = gguf.GGUFReader(whole_path)
    tensors = whole.tensors
    share = -(-len(tensors) // count)
    for number in range(count):
        writer = gguf.GGUFWriter(part_path(folder, number + 1, count), "llama")
        if number == 0:
            for field in whole.fields.values():
                if not field.name.startswith(("GGUF.", "general.architecture")):
                    writer.add_key_value(field.name, field.contents(), field.types[0])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", n_tensors or len(tensors))
        for tensor in tensors[number * share : (number + 1) * share]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    whole_path.unlink()


def our_logits(path: Path) -> torch.Tensor:
    model = load_model(path, device="cpu", dtype="float32", progress=False).model
    return model.forward(torch.tensor(IDS), torch.arange(len(IDS)), None)


def refused(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        our_logits(path)
    return str(caught.value)


def test_a_split_model_loads_from_its_folder_and_from_any_part(tmp_path: Path) -> None:
    write_split(tmp_path)
    expected = reference_logits(llama(), IDS)
    for path in (tmp_path, part_path(tmp_path, 1), part_path(tmp_path, 3)):
        torch.testing.assert_close(our_logits(path), expected, atol=2e-4, rtol=2e-4)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_split(tmp_path)
    part_path(tmp_path, 2).unlink()
    message = refused(tmp_path)
    assert "toy-00002-of-00003.gguf" in message
    assert "part 2 of 3" in message


def test_parts_in_another_order_are_named(tmp_path: Path) -> None:
    write_split(tmp_path)
    part_path(tmp_path, 2).rename(tmp_path / "kept")
    part_path(tmp_path, 3).rename(part_path(tmp_path, 2))
    (tmp_path / "kept").rename(part_path(tmp_path, 3))
    message = refused(tmp_path)
    assert "toy-00002-of-00003.gguf: is named as part 2 of 3, but says it is part 3 of 3" in message


def test_a_part_of_another_split_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_split(tmp_path)
    write_split(other, count=4)
    shutil.copy(part_path(other, 2, 4), part_path(tmp_path, 2))
    assert (
        "toy-00002-of-00003.gguf: is named as part 2 of 3, but says it is part 2 of 4"
        in refused(tmp_path)
    )


def test_a_whole_model_in_place_of_a_part_is_named(tmp_path: Path) -> None:
    write_split(tmp_path)
    write_gguf(part_path(tmp_path, 2), llama())
    assert "toy-00002-of-00003.gguf" in refused(tmp_path)


def test_a_tensor_that_two_parts_hold_is_named(tmp_path: Path) -> None:
    write_split(tmp_path)
    second = GGUFFile(part_path(tmp_path, 2))
    name = next(iter(second.tensors))
    third = next(iter(GGUFFile(part_path(tmp_path, 3)).tensors))
    raw = part_path(tmp_path, 3).read_bytes()
    assert len(name) == len(third)
    part_path(tmp_path, 3).write_bytes(raw.replace(third.encode(), name.encode(), 1))
    message = refused(tmp_path)
    assert name in message
    assert "toy-00003-of-00003.gguf" in message


def test_a_count_of_tensors_that_lies_is_named(tmp_path: Path) -> None:
    write_split(tmp_path, n_tensors=99)
    assert "split.tensors.count is 99" in refused(tmp_path)


def test_a_part_under_another_name_says_how_parts_are_named(tmp_path: Path) -> None:
    write_split(tmp_path)
    part_path(tmp_path, 1).rename(tmp_path / "model.gguf")
    message = refused(tmp_path / "model.gguf")
    assert "one of 3 parts" in message
    assert "NAME-00001-of-00003.gguf" in message


def test_a_folder_with_two_models_asks_for_a_name(tmp_path: Path) -> None:
    write_split(tmp_path)
    (tmp_path / "another.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"4 \.gguf files.*Name one"):
        gguf_in_folder(tmp_path)
