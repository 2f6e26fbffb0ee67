"""One memory-mapped safetensors file: its tensors as views of the mapping.

Layout, https://github.com/huggingface/safetensors:
    8 bytes    little-endian length of the header
    header     JSON: name -> dtype, shape, data_offsets [begin, end) within the rest
    rest       the tensors, without gaps
The `safetensors` package checks all of that, sizes and overlaps included, before this reads it."""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from astrai.models.errors import ModelLoadError

__all__ = ["SafetensorsFile", "StoredTensor"]

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the file."""

    type_name: str  # as the file has it
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # byte in the file
    n_bytes: int


class _Mapped:
    """Memory of the map for numpy and torch, which warn of read-only memory; nobody writes here."""

    def __init__(self, address: int, n_bytes: int, owner: mmap.mmap) -> None:
        self._owner = owner  # the map lives as long as a view of it
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (n_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


class SafetensorsFile:
    """Views may be taken and read by several threads."""

    def __init__(self, path: Path) -> None:
        """Raises ModelLoadError for a file that is missing, cut off or malformed, and for a tensor
        of a type that is not read."""
        self.path = path
        try:
            with safe_open(path, framework="pt"):
                pass
            with path.open("rb") as file:
                n_header = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(n_header))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelLoadError(
                path, f"cannot be read as safetensors: {error}.", "Fetch it again."
            ) from error
        header.pop("__metadata__", None)
        self.tensors = {name: self._stored(name, e, 8 + n_header) for name, e in header.items()}
        self._address: int = np.frombuffer(self._map, np.uint8).ctypes.data

    def view(self, name: str) -> torch.Tensor:
        """The tensor where it lies in the file, not to be written to."""
        stored = self.tensors[name]
        if stored.n_bytes == 0:
            return torch.empty(stored.shape, dtype=stored.dtype)
        mapped = _Mapped(self._address + stored.begin, stored.n_bytes, self._map)
        flat = torch.from_numpy(np.asarray(mapped))
        # The file aligns nothing: a tensor of float32 may begin anywhere.
        if stored.begin % stored.dtype.itemsize:
            flat = flat.clone()
        return flat.view(stored.dtype).view(stored.shape)

    def forget_pages(self) -> None:
        """Let the system drop the mapped pages from this process; reading maps them again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _stored(self, name: str, entry: dict[str, Any], base: int) -> StoredTensor:
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ModelLoadError(
                self.path,
                f"tensor {name!r} has dtype {entry['dtype']}; F32, F16, BF16 and F64 are read.",
                "Use an unquantised checkpoint or a GGUF file.",
            )
        begin, end = entry["data_offsets"]
        return StoredTensor(entry["dtype"], dtype, tuple(entry["shape"]), base + begin, end - begin)
