"""The edits of requests as lists on the device, one for each row of the pool.

A list is sent when its request draws in that row for the first time. From then on it grows on the
device, where `ops.keep_drawn` counts what is drawn: a draw needs no token that the host has not
heard of. The host counts behind (`LogitEdits`), for a request that is sent back and comes again,
to any row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from astrai.extension import ops
from astrai.kvcache import HostStaging
from astrai.sampling.penalties import LogitEdits

__all__ = ["DeviceEdits", "edit_capacity", "edit_list_bytes"]

_ROOM_FOR_BIAS = 1024  # entries beside the tokens of the longest text
_ENTRY_BYTES, _HEADER_BYTES = 12, 16

_Entries = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]]


def edit_capacity(vocab_size: int, max_seq_len: int) -> int:
    """Entries of one list: no token is in it twice, so that it never holds more than all."""
    return min(vocab_size, max_seq_len + _ROOM_FOR_BIAS)


def edit_list_bytes(vocab_size: int, max_seq_len: int) -> int:
    """Memory of one list."""
    return _HEADER_BYTES + _ENTRY_BYTES * edit_capacity(vocab_size, max_seq_len)


class DeviceEdits:
    """Lists for rows 0 to n_lists - 1 of the pool. Single-threaded; launches only."""

    def __init__(self, n_lists: int, capacity: int, device: torch.device) -> None:
        shape = (n_lists, capacity)
        self._lens = torch.zeros(n_lists, dtype=torch.int32, device=device)
        self._penalties = torch.zeros(n_lists, 3, dtype=torch.float32, device=device)
        self._ids = torch.zeros(shape, dtype=torch.int32, device=device)
        self._bias = torch.zeros(shape, dtype=torch.float32, device=device)
        self._counts = torch.zeros(shape, dtype=torch.float32, device=device)
        # Of each list the request whose it is, and how many of its tokens are counted there.
        self._held: list[tuple[LogitEdits | None, int]] = [(None, 0)] * n_lists

    def of(self, rows: torch.Tensor) -> ops.LogitEdits:
        """As `ops.sample` takes them. rows: int32 [n] the list of each row, -1 for none."""
        return ops.LogitEdits(
            rows, self._lens, self._ids, self._bias, self._counts, self._penalties
        )

    def prepare(
        self, row: int, edit: LogitEdits, n_generated: int, staging: HostStaging | None = None
    ) -> None:
        """Have in list `row` what the next draw of a request needs, which has drawn n_generated
        tokens and draws one. staging: see `DeviceSampler.plan`. Raises RuntimeError where the list
        is not there and the host does not know all these tokens, or they are more than fit."""
        held, self._held[row] = self._held[row], (None, 0)  # nobody's, should it end half sent
        if held != (edit, n_generated):
            self._send(row, edit, n_generated, staging)
        elif n_generated == edit.min_tokens and len(edit.masked_ids):
            _, bias, _ = _entries_of(edit, n_generated)
            n = len(edit.masked_ids)
            _send_to(self._bias[row, :n], torch.from_numpy(bias[:n]), staging)
        self._held[row] = (edit, n_generated + 1)

    def _send(
        self, row: int, edit: LogitEdits, n_generated: int, staging: HostStaging | None
    ) -> None:
        if edit.n_generated != n_generated:
            raise RuntimeError(
                f"DeviceEdits: row {row} has a request with {n_generated} tokens drawn, of which "
                f"the host knows {edit.n_generated}"
            )
        ids, bias, counts = _entries_of(edit, n_generated)
        n, capacity = len(ids), self._ids.shape[1]
        if n > capacity:
            raise RuntimeError(
                f"DeviceEdits: row {row} has a request that changes {n} logits; a list holds "
                f"{capacity}"
            )
        penalties = np.array([edit.repetition, edit.frequency, edit.presence], np.float32)
        columns = (np.array([n], np.int32), penalties, ids, bias, counts)
        places = (
            self._lens[row : row + 1],
            self._penalties[row],
            self._ids[row, :n],
            self._bias[row, :n],
            self._counts[row, :n],
        )
        for place, column in zip(places, columns, strict=True):
            _send_to(place, torch.from_numpy(column), staging)


def _send_to(place: torch.Tensor, values: torch.Tensor, staging: HostStaging | None) -> None:
    if staging is None:
        place.copy_(values)
    else:
        place.copy_(staging.hold(values), non_blocking=True)


def _entries_of(edit: LogitEdits, n_generated: int) -> _Entries:
    """ids, bias and counts, each id once; those that min_tokens masks are the first ones."""
    seen_ids, seen_counts = edit.seen()
    if not edit.has_penalties:
        seen_ids, seen_counts = seen_ids[:0], seen_counts[:0]
    n_masked, n_biased = len(edit.masked_ids), len(edit.bias_ids)
    every_id = np.concatenate([edit.masked_ids, edit.bias_ids, seen_ids])
    ids, first, places = np.unique(every_id, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    ids = ids[by_appearance]
    places = np.argsort(by_appearance)[places]
    bias = np.zeros(len(ids), np.float32)
    bias[places[n_masked : n_masked + n_biased]] = edit.bias_values
    if n_generated < edit.min_tokens:
        bias[:n_masked] = -np.inf
    counts = np.full(len(ids), -1, np.float32)
    counts[places[n_masked + n_biased :]] = seen_counts
    return ids.astype(np.int32), bias, counts
