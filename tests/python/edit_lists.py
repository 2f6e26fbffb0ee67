"""What lists of edits mean, in plain torch and Python."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from astrai.extension import ops


def edited(logits: Tensor, edits: ops.LogitEdits) -> Tensor:
    """Logits [n, vocab] after the edits of their rows, by the definition, float32."""
    result = logits.float().clone()
    lens = edits.lens.tolist()
    for row, one in enumerate(edits.rows.tolist()):
        if one < 0:
            continue
        n = lens[one]
        ids, counts = edits.ids[one, :n].long(), edits.counts[one, :n]
        repetition, frequency, presence = edits.penalties[one]
        x = result[row, ids] + edits.bias[one, :n]
        penalised = torch.where(x > 0, x / repetition, x * repetition)
        penalised = penalised - (frequency * counts + presence * (counts > 0))
        result[row, ids] = torch.where(counts >= 0, penalised, x)
    return result


def count_drawn(edits: ops.LogitEdits, token_ids: Sequence[int], is_faulty: Sequence[bool]) -> None:
    """Count a token in the list of each row, as `ops.keep_drawn` does; lists on the CPU."""
    capacity = edits.ids.shape[1]
    for one, token_id, fault in zip(edits.rows.tolist(), token_ids, is_faulty, strict=True):
        if one < 0 or fault or edits.penalties[one].tolist() == [1, 0, 0]:
            continue
        n = int(edits.lens[one])
        known = edits.ids[one, :n].tolist()
        if token_id in known:
            at = known.index(token_id)
            edits.counts[one, at] = max(float(edits.counts[one, at]), 0) + 1
        elif n < capacity:
            edits.ids[one, n], edits.bias[one, n], edits.counts[one, n] = token_id, 0, 1
            edits.lens[one] += 1
