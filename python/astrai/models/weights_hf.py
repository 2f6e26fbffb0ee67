"""Weights of a Hugging Face folder: model.safetensors, or shards named by an index file.

The `safetensors` package checks headers and maps the files; pickles are never opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from astrai.models.errors import ModelLoadError

__all__ = ["SafetensorsSource", "read_json_object"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# Mapped pages count as this process's memory until the map goes, so it goes now and then.
_MAPPED_BYTES = 64 << 20
_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file whose top level is an object; ModelLoadError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(
            path, f"cannot be read as JSON: {error}.", "Fetch it again."
        ) from error
    if not isinstance(value, dict):
        raise ModelLoadError(path, f"holds a {type(value).__name__}, an object was expected.")
    return value


class SafetensorsSource:
    """`WeightSource` over the safetensors files of a folder. Single-threaded."""

    def __init__(
        self, folder: Path, rows_interleaved: bool = False, norm_offset: float = 0.0
    ) -> None:
        """rows_interleaved, norm_offset: the family's conventions, see `Family`.
        Raises ModelLoadError for files that are missing, cut off, or that the index belies."""
        self.rows_interleaved = rows_interleaved
        self.norm_offset = norm_offset
        self._folder = folder
        self._file_of: dict[str, Path] = {}
        self._open: tuple[Path, Any] | None = None
        self._mapped_bytes = 0  # read through the open file so far
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._bytes: dict[str, int] = {}
        index = folder / _INDEX
        if (folder / _SINGLE).is_file():
            self._read_header(folder / _SINGLE, None)
        elif index.is_file():
            self._read_index(index)
        else:
            pickled = any(next(folder.glob(pattern), None) for pattern in _PICKLES)
            remedy = (
                "It has pickled weights only, which can run code when opened: convert them to "
                "safetensors."
                if pickled
                else "Download the safetensors files of the model."
            )
            raise ModelLoadError(folder, f"has neither {_SINGLE} nor {_INDEX}.", remedy)

    def names(self) -> set[str]:
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def n_bytes(self, name: str) -> int:
        return self._bytes[name]

    def where(self, name: str | None = None) -> str:
        return str(self._folder if name is None else self._file_of[name])

    def copy_into(
        self, name: str, out: torch.Tensor, row_index: torch.Tensor | None = None
    ) -> None:
        tensor = self._handle(self._file_of[name]).get_tensor(name)
        if row_index is None:
            out.copy_(tensor)
        else:
            out.index_copy_(0, row_index, tensor.to(out.device, out.dtype))
        self._mapped_bytes += self._bytes[name]
        if self._mapped_bytes >= _MAPPED_BYTES:
            self._open, self._mapped_bytes = None, 0

    def _handle(self, path: Path) -> Any:
        """The open file, one at a time."""
        if self._open is None or self._open[0] != path:
            try:
                self._open = (path, safe_open(path, framework="pt", device="cpu"))
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(
                    path, f"cannot be read as safetensors: {error}.", "Fetch it again."
                ) from error
        return self._open[1]

    def _read_index(self, index: Path) -> None:
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelLoadError(index, "has no weight_map.", "Fetch it again.")
        by_file: dict[str, set[str]] = {}
        for name, file_name in weight_map.items():
            if not isinstance(file_name, str) or Path(file_name).name != file_name:
                raise ModelLoadError(
                    index,
                    f"tensor {name!r} is said to be in {file_name!r}, which is no file name of "
                    f"this folder.",
                )
            by_file.setdefault(file_name, set()).add(name)
        for file_name, names in sorted(by_file.items()):
            path = self._folder / file_name
            if not path.is_file():
                raise ModelLoadError(
                    path,
                    f"is missing; {index.name} says it holds {min(names)!r}.",
                    "Download every shard of the model.",
                )
            self._read_header(path, names)

    def _read_header(self, path: Path, promised: set[str] | None) -> None:
        """Note the tensors of one file. promised: what the index says is in it."""
        handle = self._handle(path)
        present = set(handle.keys())
        for name in sorted((promised or set()) - present):
            raise ModelLoadError(
                path,
                f"does not hold tensor {name!r}, although {_INDEX} says so.",
                "Fetch it again.",
            )
        for name in present:
            if name in self._file_of:
                raise ModelLoadError(path, f"tensor {name!r} is also in {self._file_of[name]}.")
            view = handle.get_slice(name)
            dtype, shape = view.get_dtype(), tuple(view.get_shape())
            if dtype not in _DTYPE_BYTES:
                raise ModelLoadError(
                    path,
                    f"tensor {name!r} has dtype {dtype}; F32, F16, BF16 and F64 are read.",
                    "Use an unquantised checkpoint or a GGUF file.",
                )
            self._file_of[name] = path
            self._shapes[name] = shape
            self._bytes[name] = _DTYPE_BYTES[dtype] * int(torch.Size(shape).numel())
