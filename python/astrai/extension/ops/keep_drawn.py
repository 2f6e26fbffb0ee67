"""The kernel behind a draw: what the next draw of the same rows finds."""

from __future__ import annotations

from torch import Tensor

from astrai import _C

from .sample import LogitEdits


def keep_drawn(
    token_ids: Tensor,
    is_faulty: Tensor,
    rows: Tensor,
    last_ids: Tensor,
    edits: LogitEdits | None = None,
) -> None:
    """Write last_ids[rows[b]] = token_ids[b], and count the token in the list of row b.

    token_ids: [B] int32, is_faulty: [B] bool or uint8, as `sample` wrote them. rows: [B] int32 in
    [0, len(last_ids)); of rows with the same place one is kept. last_ids: [N] int32. edits: no two
    rows may have one list. In a list with penalties the count of the token rises by one, from 0
    where it is -1; a token that is new there becomes the last entry, unless the list is full. A
    faulty row counts nothing. Modifies last_ids and the lens, ids, bias and counts of edits.
    Runs on the current stream; can be captured in a CUDA graph.
    Raises KernelUnavailableError in a build without CUDA, ValueError for shapes, dtypes or devices
    that do not fit."""
    _C.keep_drawn(token_ids, is_faulty, rows, last_ids, None if edits is None else edits.tensors)
