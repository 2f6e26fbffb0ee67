"""An executor that runs ahead as the one of a GPU does, over a device that computes nothing.

The host's half is the real one: steps are staged, their draws planned and their results read as
`DeviceExecutor` does, with copies to host memory in the place of those to a device. What is missing
is the launch of the kernels. The device takes a fixed time for each step.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import torch

from astrai.engine.decode_runner import padded_rows
from astrai.kvcache import DecodeSteps, HostStaging, PagePool
from astrai.sampling import SampledRows, Sampler
from astrai.sampling.device_edits import DeviceEdits
from astrai.sampling.device_sampler import WORDS_PER_ROW, DeviceSampler, RowPlan

__all__ = ["HostSampler", "PretendedDevice"]


class HostSampler(DeviceSampler):
    """Without the workspace of the draw, which needs a build with CUDA."""

    def __init__(self, vocab_size: int, max_rows: int) -> None:
        Sampler.__init__(self, vocab_size)
        self._generation = np.zeros(len(self._flags), np.int64)
        self._rows = None
        self._device = torch.device("cpu")
        self._lists = DeviceEdits(max_rows, 64, self._device)


class PretendedDevice:
    """Draws the next of some tokens for every row of a step."""

    runs_ahead = True

    def __init__(
        self, pool: PagePool, sampler: DeviceSampler, token_ids: list[int], step_s: float
    ) -> None:
        """step_s: what the device takes for a step."""
        self._sampler, self._pool = sampler, pool
        self._max_rows = pool.host.max_batch_size
        padding = torch.full((1, pool.host.max_seq_len), pool.host.reserved_slot, dtype=torch.int32)
        pool.table._is_alias = False  # the table travels as it does to a device
        pool.table.device = torch.cat([pool.table.host, padding])
        self._steps = DecodeSteps(pool, WORDS_PER_ROW)
        self.idle = [HostStaging(pool.device, 1 << 22) for _ in range(2)]
        draws = [torch.full((self._max_rows,), i, dtype=torch.int32) for i in token_ids]
        self._draws = itertools.cycle(draws)
        self._is_faulty = torch.zeros(self._max_rows, dtype=torch.uint8)
        self._step_s = step_s
        self._free_at = 0.0

    def launch(self, group: Any, slots: list[int]) -> PretendedStep:
        staging = self.idle.pop()
        if group.n_decode == len(group.tasks):
            n_padded = padded_rows(len(slots), self._max_rows)
            staged = self._steps.stage(group.req_indices, group.starts, n_padded, staging)
            words = staged.extra.numpy()
            plan = self._sampler.plan(slots, group.req_indices, words, n_padded, staging)
            self._steps.send(staged)
        else:
            self._pool.plan_step(
                group.req_indices, group.starts, group.q_lens, group.n_decode, None, staging
            )
            words = staging.take(WORDS_PER_ROW * len(slots), torch.int32).numpy()
            rows = group.req_indices[: len(slots)]
            plan = self._sampler.plan(slots, rows, words, staging=staging)
        drawn = staging.hold(next(self._draws))
        is_faulty = staging.hold(self._is_faulty)
        self._free_at = max(self._free_at, time.perf_counter()) + self._step_s
        return PretendedStep(self, plan, staging, drawn, is_faulty, self._free_at)

    def note(self, plan: RowPlan, token_ids: list[int]) -> tuple[frozenset[int], dict[int, str]]:
        return self._sampler.note(plan, token_ids, frozenset())


class PretendedStep:
    """A step that is done at some time."""

    def __init__(
        self,
        device: PretendedDevice,
        plan: RowPlan,
        staging: HostStaging,
        drawn: torch.Tensor,
        is_faulty: torch.Tensor,
        done_at: float,
    ) -> None:
        self._device, self._plan, self._staging = device, plan, staging
        self._drawn, self._is_faulty, self._done_at = drawn, is_faulty, done_at

    def wait(self) -> None:
        time.sleep(max(self._done_at - time.perf_counter(), 0))

    def result(self) -> SampledRows:
        n = self._plan.n_rows
        token_ids: list[int] = self._drawn.numpy()[:n].tolist()
        assert not self._is_faulty.numpy()[:n].any()
        completed_rows, errors = self._device.note(self._plan, token_ids)
        self._staging.reset()
        self._device.idle.append(self._staging)
        return SampledRows(token_ids, frozenset(), None, completed_rows, errors)
