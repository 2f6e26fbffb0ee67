"""The edits of a batch as the compact lists that the device's sampler reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from astrai.extension import ops
from astrai.sampling.penalties import LogitEdits

__all__ = ["edit_lists"]

_Lists = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]]
_NO_LISTS: _Lists = (np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float32))
_NO_PENALTIES = (1.0, 0.0, 0.0)


def edit_lists(
    edits: Sequence[LogitEdits | None], n_generated: Sequence[int], device: torch.device
) -> ops.LogitEdits:
    """What `ops.sample` takes for these rows; None is a row whose logits stay as they are.

    n_generated: tokens drawn for each row before this one. One copy to the device, not waited for.
    """
    lists = [
        _NO_LISTS if edit is None else _lists_of(edit, n)
        for edit, n in zip(edits, n_generated, strict=True)
    ]
    indptr = np.cumsum([0, *(len(ids) for ids, _, _ in lists)], dtype=np.int32)
    penalties = np.array(
        [
            _NO_PENALTIES if edit is None else (edit.repetition, edit.frequency, edit.presence)
            for edit in edits
        ],
        np.float32,
    )
    columns = [np.concatenate(column).view(np.int32) for column in zip(*lists, strict=True)]
    parts = [indptr, *columns, penalties.reshape(-1).view(np.int32)]
    words = torch.from_numpy(np.concatenate(parts))
    if device.type == "cuda":
        words = words.pin_memory()
    on_device = words.to(device, non_blocking=True)
    indptr_words, ids, bias, counts, penalty_words = torch.split(
        on_device, [len(part) for part in parts]
    )
    return ops.LogitEdits(
        indptr=indptr_words,
        ids=ids,
        bias=bias.view(torch.float32),
        counts=counts.view(torch.float32),
        penalties=penalty_words.view(torch.float32).view(-1, 3),
    )


def _lists_of(edit: LogitEdits, n_generated: int) -> _Lists:
    """ids, bias and counts of one row, each id once."""
    masked_ids = edit.masked_ids if n_generated < edit.min_tokens else edit.masked_ids[:0]
    seen_ids, seen_counts = edit.seen()
    if not edit.has_penalties:
        seen_ids, seen_counts = seen_ids[:0], seen_counts[:0]
    ids, places = np.unique(
        np.concatenate([masked_ids, edit.bias_ids, seen_ids]), return_inverse=True
    )
    n_masked, n_biased = len(masked_ids), len(edit.bias_ids)
    bias = np.zeros(len(ids), np.float32)
    bias[places[n_masked : n_masked + n_biased]] = edit.bias_values
    bias[places[:n_masked]] = -np.inf
    counts = np.full(len(ids), -1, np.float32)
    counts[places[n_masked + n_biased :]] = seen_counts
    return ids.astype(np.int32), bias, counts
