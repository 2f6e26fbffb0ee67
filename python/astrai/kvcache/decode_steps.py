"""Decode steps of a pool whose index arrays lie at fixed addresses, as captured graphs need them.

    device words, n rows:  | plan of n rows | n_extra * n words of the caller | table update |

The offsets depend on n alone. Every step of n rows overwrites them by one copy; the device works
through steps in order, so a step has been computed before the next one's copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from astrai import _C

from .cache import StepBatch
from .table import int32_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .pool import PagePool

_ROOM_FOR_UPDATE = 8192  # int32 words of a table update that travel along; a longer one goes alone
_ALIGNMENT = 4  # int32 words: 16 bytes


@dataclass(frozen=True, slots=True, eq=False)
class FixedStep:
    """The device's side of the steps of n rows."""

    batch: StepBatch  # n rows, padding included; its input_ids are -1 where ids are drawn
    extra: Tensor  # int32 [n_extra * n]


@dataclass(frozen=True, slots=True, eq=False)
class StagedStep:
    """A step on the host, to be sent after `extra` is filled."""

    fixed: FixedStep
    extra: Tensor  # int32 [n_extra * n] in pinned memory
    words: Tensor  # int32, all that travels
    n_update: int  # the last words of it


class DecodeSteps:
    """Plans decode steps of one pool on a GPU. Single-threaded, like the pool."""

    def __init__(self, pool: PagePool, n_extra: int) -> None:
        """n_extra: int32 words that the caller sends along for each row."""
        self._pool = pool
        self._n_extra = n_extra
        self._fixed: dict[int, FixedStep] = {}
        most = pool.host.max_batch_size
        n_words = _plan_words(most) + n_extra * most + _ROOM_FOR_UPDATE
        self._words = torch.empty(n_words, dtype=torch.int32, device=pool.device)

    def stage(self, req_indices: Sequence[int], starts: Sequence[int], n_rows: int) -> StagedStep:
        """Plan one new token of each request, position starts[i], padded to n_rows rows."""
        pool = self._pool
        n_plan = _plan_words(n_rows)
        n_fixed = n_plan + self._n_extra * n_rows
        words = torch.empty(n_fixed + _ROOM_FOR_UPDATE, dtype=torch.int32, pin_memory=True)
        layout = pool.plan.build(
            req_indices,
            starts,
            [1] * len(req_indices),
            staging=int32_view(words[:n_plan]),
            pad_to=n_rows,
        )
        n_update = pool.table.n_update_int32(layout.dirty_spans)
        if n_update > _ROOM_FOR_UPDATE:
            pool.send_update(layout.dirty_spans)
            n_update = 0
        elif n_update:
            pool.table.write_update(layout.dirty_spans, words[n_fixed : n_fixed + n_update])
        fixed = self._fixed_step(layout, n_rows)
        return StagedStep(fixed, words[n_plan:n_fixed], words[: n_fixed + n_update], n_update)

    def send(self, staged: StagedStep) -> None:
        """Bring a staged step to its place on the device, and the table up to date with it."""
        n = len(staged.words)
        self._words[:n].copy_(staged.words, non_blocking=True)
        if staged.n_update:
            self._pool.table.apply_update(self._words[n - staged.n_update : n])

    def _fixed_step(self, layout: _C.Layout, n_rows: int) -> FixedStep:
        fixed = self._fixed.get(n_rows)
        if fixed is None:
            n_plan = _plan_words(n_rows)
            fixed = FixedStep(
                self._pool.batch_of(layout, self._words[:n_plan], n_rows, host_lens=None),
                self._words[n_plan : n_plan + self._n_extra * n_rows],
            )
            self._fixed[n_rows] = fixed
        return fixed


def _plan_words(n_rows: int) -> int:
    size = _C.BatchPlan.staging_size(n_rows, n_rows)
    return -(-size // _ALIGNMENT) * _ALIGNMENT
