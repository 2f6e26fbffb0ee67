"""Reading a GGUF file: metadata values, tensor descriptions and views of the mapped bytes.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little
endian:

    magic u32 | version u32 | n_tensors u64 | n_values u64
    n_values  x (key string | type u32 | value)
    n_tensors x (name string | n_dims u32 | dims u64 each | type u32 | offset u64)
    padding to `general.alignment` | tensor bytes, each tensor at its own offset

The reader of the `gguf` package keeps one numpy object a string and needs seconds for a large
vocabulary, hence this one; block layouts and dequantisation stay with that package. Nothing here
trusts the file: every count is compared with the bytes left before anything is allocated for it.
Not thread safe while opening; views may be read from any thread."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from astrai.models.errors import ModelLoadError

__all__ = ["GGUFFile", "GGUFTensor"]

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_MAX_KEY_BYTES = 1 << 16
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as the file describes it."""

    name: str
    shape: tuple[int, ...]  # slowest dimension first, as torch has it
    type_name: str  # "F32", "Q4_1", ...
    offset: int  # bytes from the start of the file
    n_bytes: int
    row_bytes: int  # bytes of one run of the last dimension


class GGUFFile:
    """A memory-mapped GGUF file. `metadata` maps keys to Python values: strings, numbers, lists of
    strings, and numpy arrays for lists of numbers."""

    def __init__(self, path: Path) -> None:
        """Raises ModelLoadError for a file that is missing, cut off or malformed."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelLoadError(path, f"cannot be read: {error}.") from error
        self._size = len(self._map)
        self._at = 0
        try:
            self.metadata, self.tensors = self._read_header()
        except UnicodeDecodeError as error:
            raise self._fault(f"text that is not UTF-8 before byte {self._at}") from error

    def rows(self, tensor: GGUFTensor, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """The bytes of rows begin to end: uint8 [end - begin, row_bytes], a view of the map."""
        flat = np.frombuffer(
            self._map,
            dtype=np.uint8,
            count=(end - begin) * tensor.row_bytes,
            offset=tensor.offset + begin * tensor.row_bytes,
        )
        return flat.reshape(end - begin, tensor.row_bytes)

    def forget_pages(self) -> None:
        """Let the system drop the mapped pages from this process; reading maps them again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _fault(self, problem: str) -> ModelLoadError:
        return ModelLoadError(self.path, f"not a valid GGUF file: {problem}.", "Fetch it again.")

    def _take(self, n_bytes: int, what: str) -> int:
        """Advance over n_bytes and return where they began."""
        begin = self._at
        if n_bytes > self._size - begin:
            raise self._fault(
                f"{what} needs {n_bytes} bytes at offset {begin}, the file has {self._size}"
            )
        self._at = begin + n_bytes
        return begin

    def _scalar(self, code: str, what: str) -> Any:
        begin = self._take(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self._map, begin)[0]

    def _string(self, what: str, limit: int | None = None) -> str:
        n_bytes = self._scalar("Q", what)
        if limit is not None and n_bytes > limit:
            raise self._fault(f"{what} is {n_bytes} bytes long, the limit is {limit}")
        begin = self._take(n_bytes, what)
        return self._map[begin : begin + n_bytes].decode("utf-8")

    def _count(self, what: str, least_bytes: int) -> int:
        """A count whose entries take at least least_bytes each: no more than the file can hold."""
        count: int = self._scalar("Q", what)
        if count > (self._size - self._at) // least_bytes:
            raise self._fault(f"{what} is {count}, more than the file can hold")
        return count

    def _read_header(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        begin = self._take(4, "magic")
        if self._map[begin : begin + 4] != _MAGIC:
            raise self._fault("it does not begin with GGUF")
        version = self._scalar("I", "version")
        if version not in (2, 3):
            raise self._fault(f"version is {version}; little-endian 2 and 3 are read")
        n_tensors = self._count("tensor count", least_bytes=24)
        n_values = self._count("metadata count", least_bytes=13)
        metadata: dict[str, Any] = {}
        for _ in range(n_values):
            key = self._string("a metadata key", _MAX_KEY_BYTES)
            if key in metadata:
                raise self._fault(f"metadata key {key!r} occurs twice")
            metadata[key] = self._value(self._scalar("I", key), key)
        described = [self._tensor_entry() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or not 0 < alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._fault(f"general.alignment is {alignment!r}, not a power of two")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in described:
            if name in tensors:
                raise self._fault(f"tensor {name!r} occurs twice")
            tensors[name] = self._placed(name, shape, type_id, offset, base, alignment)
        return metadata, tensors

    def _value(self, type_id: int, key: str) -> Any:
        if type_id == _STRING:
            return self._string(key)
        if type_id == _ARRAY:
            return self._array(key)
        if type_id not in _SCALARS:
            raise self._fault(f"metadata key {key!r} has the unknown type {type_id}")
        return self._scalar(_SCALARS[type_id], key)

    def _array(self, key: str) -> list[str] | npt.NDArray[Any]:
        type_id = self._scalar("I", key)
        if type_id == _STRING:
            return self._strings(key)
        if type_id not in _SCALARS:
            raise self._fault(f"metadata array {key!r} has the unsupported type {type_id}")
        code = _SCALARS[type_id]
        item_bytes = struct.calcsize("<" + code)
        count = self._count(key, least_bytes=item_bytes)
        begin = self._take(count * item_bytes, key)
        mapped = np.frombuffer(self._map, np.dtype("<" + code), count, begin)
        numbers: npt.NDArray[Any] = mapped.copy()
        return numbers

    def _strings(self, key: str) -> list[str]:
        """An array of strings. Vocabularies have 10^5 of them, so this is `_string` unrolled."""
        count = self._count(key, least_bytes=8)
        data, size, at = self._map, self._size, self._at
        read_length = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            if at + 8 > size:
                self._at = at
                self._take(8, key)  # raises
            begin = at + 8
            at = begin + read_length(data, at)[0]
            if at > size:
                self._at = begin
                self._take(at - begin, key)  # raises
            strings.append(data[begin:at].decode("utf-8"))
        self._at = at
        return strings

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string("a tensor name", _MAX_KEY_BYTES)
        n_dims = self._scalar("I", f"tensor {name!r}")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise self._fault(f"tensor {name!r} has {n_dims} dimensions")
        dims = [self._scalar("Q", f"tensor {name!r}") for _ in range(n_dims)]
        type_id = self._scalar("I", f"tensor {name!r}")
        return name, tuple(reversed(dims)), type_id, self._scalar("Q", f"tensor {name!r}")

    def _placed(
        self,
        name: str,
        shape: tuple[int, ...],
        type_id: int,
        offset: int,
        base: int,
        alignment: int,
    ) -> GGUFTensor:
        # The package reads and writes whole models; a folder's start does not wait for it.
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            kind = GGMLQuantizationType(type_id)
            block_len, block_bytes = GGML_QUANT_SIZES[kind]
        except (KeyError, ValueError):
            raise self._fault(f"tensor {name!r} has the unknown type {type_id}") from None
        if 0 in shape:
            raise self._fault(f"tensor {name!r} has shape {list(shape)} with a zero in it")
        if shape[-1] % block_len:
            raise self._fault(
                f"tensor {name!r} has rows of {shape[-1]}, not a multiple of {kind.name}'s "
                f"{block_len}"
            )
        row_bytes = shape[-1] // block_len * block_bytes
        n_bytes = math.prod(shape[:-1]) * row_bytes  # Python integers: no wrap to guard against
        begin = base + offset
        if offset % alignment or n_bytes > self._size - begin:
            raise self._fault(
                f"tensor {name!r} ({n_bytes} bytes at {begin}) is misaligned or ends beyond the "
                f"file's {self._size} bytes"
            )
        return GGUFTensor(name, shape, kind.name, begin, n_bytes, row_bytes)
