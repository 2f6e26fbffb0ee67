"""Decode steps of a pool whose index arrays lie at fixed addresses, as captured graphs need them.

    device words, n rows:  | n_extra * n words of the caller | plan of n rows | table update |

Where the tensors of a step begin depends on n alone. The plan ends with the list of units, as long
as the step needs it, and the update follows. Every step of n rows overwrites the words by one copy;
the device works through steps in order, so a step has been computed before the next one's copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from astrai import _C

from .cache import StepBatch
from .pool import add_rope_offsets, max_decode_splits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .host_staging import HostStaging
    from .pool import PagePool

_ROOM_FOR_UPDATE = 8192  # int32 words of a table update that travel along; a longer one goes alone
_ALIGNMENT = 4  # int32 words: 16 bytes


@dataclass(frozen=True, slots=True, eq=False)
class FixedStep:
    """The device's side of the steps of n rows, of those whose requests share slots or of the
    others: `decode_stack_len` of the cache says which. They run other kernels."""

    n_rows: int
    batch: StepBatch  # n rows, padding included; its input_ids are -1 where ids are drawn
    extra: Tensor  # int32 [n_extra * n]


@dataclass(frozen=True, slots=True, eq=False)
class StagedStep:
    """A step on the host, to be sent after `extra` is filled."""

    fixed: FixedStep
    extra: Tensor  # int32 [n_extra * n] in the staging memory
    words: Tensor  # int32 [n_words], all that travels
    n_words: int
    n_update: int  # the last words of it


class DecodeSteps:
    """Plans decode steps of one pool on a GPU. Single-threaded, like the pool."""

    def __init__(self, pool: PagePool, n_extra: int) -> None:
        """n_extra: int32 words that the caller sends along for each row."""
        self._pool = pool
        self._n_extra = n_extra
        self._fixed: dict[tuple[int, bool], FixedStep] = {}
        self._rooms: dict[int, tuple[int, int]] = {}
        most = pool.host.max_batch_size
        n_words = self._extra_words(most) + self._plan_words(most) + _ROOM_FOR_UPDATE
        self._words = torch.empty(n_words, dtype=torch.int32, device=pool.device)

    def stage(
        self,
        req_indices: Sequence[int],
        starts: Sequence[int],
        n_rows: int,
        staging: HostStaging,
        rope_offsets: Sequence[int] | None = None,
    ) -> StagedStep:
        """Plan one new token of each request, position starts[i], padded to n_rows rows. A step
        that is not sent leaves its changes of the table to the next one.
        staging, rope_offsets: see `PagePool.plan_step`."""
        pool = self._pool
        n_extra, n_plan = self._room(n_rows)
        words = staging.take(n_extra + n_plan + _ROOM_FOR_UPDATE, torch.int32)
        array = words.numpy()  # its slices cost a fraction of a tensor's
        pool.table.catch_up()
        layout = pool.plan.build(
            req_indices,
            starts,
            [1] * len(req_indices),
            staging=array[n_extra : n_extra + n_plan],
            pad_to=n_rows,
            stack_len=pool.stack_len,
        )
        spans = layout.dirty_spans
        n_update = pool.table.expect(spans)
        if rope_offsets is not None:
            add_rope_offsets(layout, words[n_extra:], rope_offsets, [1] * len(req_indices))
        end = n_extra + layout.n_int32
        if n_update > _ROOM_FOR_UPDATE:
            pool.send_update(spans, staging)
            n_update = 0
        elif n_update:
            pool.table.write_update(spans, array[end : end + n_update])
        fixed = self._fixed_step(layout, n_rows)
        extra = words[: self._n_extra * n_rows]
        n_words = end + n_update
        return StagedStep(fixed, extra, words[:n_words], n_words, n_update)

    def send(self, staged: StagedStep) -> None:
        """Bring a staged step to its place on the device, and the table up to date with it."""
        n = staged.n_words
        self._words[:n].copy_(staged.words, non_blocking=True)
        if staged.n_update:
            self._pool.table.apply_update(self._words[n - staged.n_update : n])

    def _fixed_step(self, layout: _C.Layout, n_rows: int) -> FixedStep:
        key = (n_rows, layout.has_shared)
        fixed = self._fixed.get(key)
        if fixed is None:
            n_extra = self._extra_words(n_rows)
            plan = self._words[n_extra : n_extra + self._plan_words(n_rows)]
            fixed = FixedStep(
                n_rows,
                self._pool.batch_of(layout, plan, host_lens=None),
                self._words[: self._n_extra * n_rows],
            )
            self._fixed[key] = fixed
        return fixed

    def _room(self, n_rows: int) -> tuple[int, int]:
        """Words of the caller and of the plan. The same in every step of as many rows, so that
        they are taken at the same place."""
        room = self._rooms.get(n_rows)
        if room is None:
            room = self._rooms[n_rows] = self._extra_words(n_rows), self._plan_words(n_rows)
        return room

    def _extra_words(self, n_rows: int) -> int:
        return -(-self._n_extra * n_rows // _ALIGNMENT) * _ALIGNMENT

    def _plan_words(self, n_rows: int) -> int:
        """Room for the plan, whatever the requests' lengths. Pairs of words: units end it."""
        max_splits = max_decode_splits(n_rows, self._pool.host.max_seq_len)
        return _C.BatchPlan.staging_size(n_rows, n_rows, max_splits)
