"""Weights of a Hugging Face folder: model.safetensors, or shards named by an index file.

Files are memory-mapped and pickles never opened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from astrai.models.errors import ModelLoadError
from astrai.models.safetensors_file import SafetensorsFile
from astrai.models.tensor_copy import StagedCopier, copy_on_cpu, row_ranges
from astrai.models.weights import is_ignored, not_finite

__all__ = ["SafetensorsSource", "read_json_object", "sum_by"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# Mapped pages count as this process's memory until they are dropped, so they are now and then.
_MAPPED_BYTES = 64 << 20


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


def sum_by(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The sum of each key's amounts, largest first."""
    sums: Counter[str] = Counter()
    for key, amount in amounts:
        sums[key] += amount
    return dict(sums.most_common())


class SafetensorsSource:
    """`WeightSource` over the safetensors files of a folder."""

    def __init__(
        self, folder: Path, rows_interleaved: bool = False, norm_offset: float = 0.0
    ) -> None:
        """rows_interleaved, norm_offset: the family's conventions, see `Family`.
        Raises ModelLoadError for files that are missing, cut off, or that the index belies."""
        self.rows_interleaved = rows_interleaved
        self.norm_offset = norm_offset
        self._folder = folder
        self._file_of: dict[str, SafetensorsFile] = {}
        self._copier: StagedCopier | None = None  # to a GPU
        self._mapped_bytes = 0  # read since pages were dropped
        index = folder / _INDEX
        if (folder / _SINGLE).is_file():
            self._add(SafetensorsFile(folder / _SINGLE))
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
        return self._file_of[name].tensors[name].shape

    def n_bytes(self, name: str) -> int:
        return self._file_of[name].tensors[name].n_bytes

    def where(self, name: str | None = None) -> str:
        return str(self._folder if name is None else self._file_of[name].path)

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of all tensors by their dtype."""
        files = {id(file): file for file in self._file_of.values()}.values()
        return sum_by((t.type_name, t.n_bytes) for file in files for t in file.tensors.values())

    def copy_into(
        self, name: str, out: torch.Tensor, row_index: torch.Tensor | None = None
    ) -> None:
        file = self._file_of[name]
        source = file.view(name)
        for begin, end in row_ranges(source, _MAPPED_BYTES):
            rows = source[begin:end]
            if row_index is None:
                is_sound = self._copy(rows, out[begin:end], None)
            else:
                is_sound = self._copy(rows, out, row_index[begin:end])
            if not is_sound:
                raise not_finite(file.path, name, out.dtype)
            self._forget_pages(rows.nbytes)

    def _copy(
        self, source: torch.Tensor, out: torch.Tensor, row_index: torch.Tensor | None
    ) -> bool:
        if out.device.type == "cpu":
            return copy_on_cpu(source, out, row_index)
        if self._copier is None:
            self._copier = StagedCopier(out.device)
        return self._copier.copy(source, out, row_index)

    def _forget_pages(self, n_read: int) -> None:
        """Drop mapped pages where many have been read."""
        self._mapped_bytes += n_read
        if self._mapped_bytes >= _MAPPED_BYTES:
            self._mapped_bytes = 0
            for mapped in {id(file): file for file in self._file_of.values()}.values():
                mapped.forget_pages()

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
            file = SafetensorsFile(path)
            _compare(file, names)
            self._add(file)

    def _add(self, file: SafetensorsFile) -> None:
        for name in file.tensors:
            if name in self._file_of:
                raise ModelLoadError(
                    file.path, f"tensor {name!r} is also in {self._file_of[name].path}."
                )
            self._file_of[name] = file


def _compare(file: SafetensorsFile, promised: set[str]) -> None:
    """Raises ModelLoadError where a shard does not hold what the index says."""
    missing = promised - file.tensors.keys()
    if missing:
        raise ModelLoadError(
            file.path,
            f"does not hold tensor {min(missing)!r}, although {_INDEX} says so.",
            "Fetch it again.",
        )
    unnamed = {name for name in file.tensors.keys() - promised if not is_ignored(name)}
    if unnamed:
        raise ModelLoadError(
            file.path,
            f"holds tensor {min(unnamed)!r}, which {_INDEX} does not place there.",
            "Fetch both again.",
        )
