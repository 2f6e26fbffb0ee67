"""One model in one GGUF file or in several: `NAME-00001-of-00003.gguf` and its siblings.

Parts are written by llama.cpp's gguf-split. Each tells its number (`split.no`, from 0), how many
there are (`split.count`) and how many tensors they hold together (`split.tensors.count`); the
first one has the metadata of the model. Any part names the whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from astrai.models.errors import ModelLoadError
from astrai.models.gguf_file import GGUFFile, GGUFTensor

__all__ = ["GGUFParts", "gguf_in_folder"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf\Z")
_MAX_PARTS = 9999


class GGUFParts:
    """Every part of a model, opened. `metadata` is the first one's; `tensors` are those of all."""

    def __init__(self, path: Path) -> None:
        """path: the file, or any part of it.
        Raises ModelLoadError that names a part which is missing, malformed, out of order or of
        another model."""
        self.files = _open_parts(path)
        self.metadata = self.files[0].metadata
        self.tensors: dict[str, GGUFTensor] = {}
        self._file_of: dict[str, GGUFFile] = {}
        for file in self.files:
            for name, tensor in file.tensors.items():
                if name in self._file_of:
                    raise ModelLoadError(
                        file.path,
                        f"tensor {name!r} is also in {self._file_of[name].path.name}.",
                        "Use parts of one and the same model.",
                    )
                self.tensors[name], self._file_of[name] = tensor, file
        self._check_count()

    @property
    def path(self) -> Path:
        """The first part, or the only file."""
        return self.files[0].path

    def file_of(self, tensor: GGUFTensor) -> GGUFFile:
        return self._file_of[tensor.name]

    def _check_count(self) -> None:
        promised = self.metadata.get("split.tensors.count")
        if len(self.files) > 1 and promised is not None and promised != len(self.tensors):
            raise ModelLoadError(
                self.path,
                f"split.tensors.count is {promised}, but its {len(self.files)} parts hold "
                f"{len(self.tensors)} tensors.",
                "Use parts of one and the same model.",
            )


def gguf_in_folder(folder: Path) -> Path | None:
    """The GGUF file of a folder, or the first part of it; None without any.
    Raises ModelLoadError where there are several models."""
    paths = sorted(folder.glob("*.gguf"))
    stems = {match["stem"] if (match := _PART_NAME.match(path.name)) else path for path in paths}
    if len(stems) > 1:
        raise ModelLoadError(folder, f"has {len(paths)} .gguf files.", "Name one of them.")
    return paths[0] if paths else None


def _open_parts(path: Path) -> list[GGUFFile]:
    file = GGUFFile(path)
    count = _split_key(file, "split.count", 1)
    if count == 1:
        return [file]
    match = _PART_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelLoadError(
            path,
            f"says it is one of {count} parts (split.count); its name does not.",
            f"Name the parts NAME-00001-of-{count:05}.gguf and so on.",
        )
    parts = []
    for number in range(1, count + 1):
        sibling = path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf")
        if not sibling.is_file():
            raise ModelLoadError(
                sibling, f"is missing, part {number} of {count}.", "Download every part."
            )
        parts.append(file if sibling == path else GGUFFile(sibling))
        _check_part(parts[-1], number, count)
    return parts


def _check_part(part: GGUFFile, number: int, count: int) -> None:
    found_number = _split_key(part, "split.no", -1) + 1
    found_count = _split_key(part, "split.count", 1)
    if (found_number, found_count) != (number, count):
        raise ModelLoadError(
            part.path,
            f"is named as part {number} of {count}, but says it is part {found_number} of "
            f"{found_count}.",
            "Give each part the name that it was published under.",
        )


def _split_key(file: GGUFFile, key: str, default: int) -> int:
    value: Any = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= _MAX_PARTS:
        raise ModelLoadError(file.path, f"{key} is {value!r}, not a number up to {_MAX_PARTS}.")
    return max(value, 1) if key == "split.count" else value
