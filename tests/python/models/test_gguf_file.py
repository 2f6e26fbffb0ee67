"""GGUFFile: what the gguf package writes is read back, and no broken file does harm."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from astrai.models import ModelLoadError
from astrai.models.gguf_file import GGUFFile


def written(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("a.string", "über 語")
    writer.add_bool("a.bool", True)
    writer.add_float32("a.float", 0.5)
    writer.add_int32("a.negative", -7)
    writer.add_uint64("a.large", 2**40)
    writer.add_array("a.strings", ["", "x", "語"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_tensor("t.vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("t.matrix", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def tensor_entry(
    name: str = "t", dims: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0
) -> bytes:
    head = string(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def file_bytes(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_values: int | None = None,
    values: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (tensor_entry(),),
    tail: bytes = b"\0" * 4096,
) -> bytes:
    header = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(values) if n_values is None else n_values,
    )
    return header + b"".join(values) + b"".join(tensors) + tail


def value(key: str, type_id: int, packed: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_id) + packed


def test_values_and_tensors_come_back_as_written(tmp_path: Path) -> None:
    file = GGUFFile(written(tmp_path / "m.gguf"))
    assert file.metadata["a.string"] == "über 語"
    assert file.metadata["a.bool"] is True
    assert file.metadata["a.float"] == 0.5
    assert file.metadata["a.negative"] == -7
    assert file.metadata["a.large"] == 2**40
    assert file.metadata["a.strings"] == ["", "x", "語"]
    assert file.metadata["a.numbers"].tolist() == [1, 2, 3]
    matrix = file.tensors["t.matrix"]
    assert matrix.shape == (3, 4)
    assert file.rows(matrix, 1, 3).view("<f4").tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    file.forget_pages()
    assert file.rows(matrix, 0, 1).view("<f4").tolist() == [[0, 1, 2, 3]]


HUGE = 2**63 + 1
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "magic": file_bytes(magic=b"GGML"),
    "version": file_bytes(version=1),
    "big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "header_cut": file_bytes()[:20],
    "more_values_than_bytes": file_bytes(n_values=HUGE),
    "more_tensors_than_bytes": file_bytes(n_tensors=HUGE),
    "string_beyond_end": file_bytes(values=(struct.pack("<Q", HUGE),)),
    "key_too_long": file_bytes(values=(string("k" * 70000),), tail=b"\0" * 80000),
    "value_type": file_bytes(values=(value("k", 99, b"\0" * 8),)),
    "array_beyond_end": file_bytes(values=(value("k", 9, struct.pack("<IQ", 10, HUGE)),)),
    "string_array_beyond_end": file_bytes(values=(value("k", 9, struct.pack("<IQ", 8, 2**40)),)),
    "array_of_arrays": file_bytes(values=(value("k", 9, struct.pack("<IQ", 9, 1)),)),
    "key_twice": file_bytes(values=(value("k", 0, b"\1"), value("k", 0, b"\2"))),
    "not_utf8": file_bytes(values=(value("k", 8, struct.pack("<Q", 1) + b"\xff"),)),
    "alignment_zero": file_bytes(values=(value("general.alignment", 4, struct.pack("<I", 0)),)),
    "alignment_odd": file_bytes(values=(value("general.alignment", 4, struct.pack("<I", 24)),)),
    "alignment_huge": file_bytes(values=(value("general.alignment", 4, struct.pack("<I", 2**31)),)),
    "alignment_text": file_bytes(values=(value("general.alignment", 8, string("32")),)),
    "no_dims": file_bytes(tensors=(tensor_entry(dims=()),)),
    "many_dims": file_bytes(tensors=(tensor_entry(dims=(1,) * 9),)),
    "zero_dim": file_bytes(tensors=(tensor_entry(dims=(8, 0)),)),
    "size_wraps": file_bytes(tensors=(tensor_entry(dims=(2**33, 2**33)),)),
    "size_beyond_end": file_bytes(tensors=(tensor_entry(dims=(2**20,)),)),
    "offset_beyond_end": file_bytes(tensors=(tensor_entry(offset=2**63),)),
    "offset_misaligned": file_bytes(tensors=(tensor_entry(offset=4),)),
    "tensor_type": file_bytes(tensors=(tensor_entry(kind=777),)),
    "row_not_of_blocks": file_bytes(tensors=(tensor_entry(dims=(33,), kind=2),)),
    "tensor_twice": file_bytes(tensors=(tensor_entry(), tensor_entry())),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused_without_a_large_allocation(tmp_path: Path, name: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(MALFORMED[name])
    tracemalloc.start()
    try:
        with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
            GGUFFile(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_the_malformed_files_differ_from_a_good_one_only_in_their_fault(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(file_bytes(values=(value("k", 0, b"\1"),)))
    assert list(GGUFFile(path).tensors) == ["t"]


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"nothing\.gguf"):
        GGUFFile(tmp_path / "nothing.gguf")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.gguf").read_bytes()
    end = len(whole.rstrip(b"\0"))  # the writer pads behind the last tensor
    for length in range(0, end, 3):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError):
            GGUFFile(path)


def test_flipped_bytes_never_end_in_another_error(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.gguf").read_bytes()
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    path = tmp_path / "flipped.gguf"
    for _ in range(400):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(500)] = rng.randrange(256)
        path.write_bytes(broken)
        _open_or_refuse(lambda: GGUFFile(path))


def _open_or_refuse(open_file: Callable[[], GGUFFile]) -> None:
    try:
        file = open_file()
    except ModelLoadError:
        return
    for tensor in file.tensors.values():
        n_rows = tensor.n_bytes // tensor.row_bytes
        assert file.rows(tensor, 0, n_rows).nbytes == tensor.n_bytes
