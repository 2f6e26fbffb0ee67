"""`RenamedSource`: a checkpoint under other names, and without what text does not need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from astrai.models.errors import ModelLoadError
from astrai.models.weights import WeightSource

__all__ = ["RenamedSource"]


class RenamedSource:
    """A `WeightSource` over another one."""

    def __init__(
        self,
        source: WeightSource,
        renames: Sequence[tuple[str, str]] = (),
        ignored: Sequence[str] = (),
    ) -> None:
        """renames: (part of a name, what stands for it), the first that fits is used; one that does
        not begin with a dot is the name's beginning. ignored: beginnings of names to leave out.
        Raises ModelLoadError where two tensors get one name."""
        self.rows_interleaved = source.rows_interleaved
        self.norm_offset = source.norm_offset
        self._source = source
        self._name_of: dict[str, str] = {}  # in the source, by the new name
        left_out: Counter[str] = Counter()
        for old in sorted(source.names()):
            module = next((begin for begin in ignored if old.startswith(begin)), None)
            if module is not None:
                left_out[module.rstrip(".")] += 1
                continue
            name = _renamed(old, renames)
            if name in self._name_of:
                raise ModelLoadError(
                    source.where(old),
                    f"tensors {self._name_of[name]!r} and {old!r} are the same weight.",
                )
            self._name_of[name] = old
        self.left_out: Mapping[str, int] = left_out  # number of tensors, by module

    def names(self) -> set[str]:
        return set(self._name_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(self._name_of[name])

    def n_bytes(self, name: str) -> int:
        return self._source.n_bytes(self._name_of[name])

    def where(self, name: str | None = None) -> str:
        return self._source.where(None if name is None else self._name_of[name])

    def copy_into(
        self, name: str, out: torch.Tensor, row_index: torch.Tensor | None = None
    ) -> None:
        self._source.copy_into(self._name_of[name], out, row_index)


def _renamed(name: str, renames: Sequence[tuple[str, str]]) -> str:
    for old, new in renames:
        if name.startswith(old) or (old.startswith(".") and old in name):
            return name.replace(old, new, 1)
    return name
