"""Token masks of grammars on the logits of single rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["apply_masks"]


def apply_masks(logits: torch.Tensor, rows: Sequence[int], masks: npt.NDArray[np.int32]) -> None:
    """Set the logits of row rows[i] that masks[i] does not allow to -inf, in place.

    logits: [n, vocab] float32. masks: [len(rows), ceil(vocab / 32)], bit j % 32 of word j / 32
    allows token j.
    """
    vocab_size = logits.shape[-1]
    bits = np.unpackbits((~masks).view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    is_forbidden = torch.from_numpy(bits.view(np.bool_)).to(logits.device)
    if len(rows) == len(logits):
        logits.masked_fill_(is_forbidden, float("-inf"))
        return
    at = torch.tensor(rows, device=logits.device)
    logits[at] = logits[at].masked_fill_(is_forbidden, float("-inf"))
