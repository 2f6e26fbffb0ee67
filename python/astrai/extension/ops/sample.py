"""The sample kernels: one token a row, without sorting the vocabulary and without a host wait."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from astrai import _C


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Lists of the logits that change before sampling, which live longer than a batch.

    L lists have room for C entries each; the entries of a list have ids of their own. A logit
    becomes, in float32: x += bias; where count >= 0, x = x / repetition if x > 0 else x *
    repetition, then x -= count * frequency + (presence if count > 0). A bias of -inf forbids the
    token.
    """

    rows: Tensor  # [B] int32: the list of each row, negative for none
    lens: Tensor  # [L] int32: entries in use
    ids: Tensor  # [L, C] int32
    bias: Tensor  # [L, C] float32
    counts: Tensor  # [L, C] float32: times generated; -1 leaves the penalties out
    penalties: Tensor  # [L, 3] float32: repetition, frequency, presence; 1, 0 and 0 are none

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """In the order of `_C`."""
        return self.rows, self.lens, self.ids, self.bias, self.counts, self.penalties


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *,
    edits: LogitEdits | None = None,
    bitmask: Tensor | None = None,
    bitmask_rows: Tensor | None = None,
    has_wide_rows: bool = True,
    token_ids: Tensor | None = None,
    is_faulty: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw one token of each row of logits as `astrai.sampling.Sampler` does on a CPU.

    logits: [B, V] bfloat16, float16 or float32 on a GPU, any stride from row to row, V up to
    262144; not modified. The parameters are one value a row on the same GPU: temperature float32
    (0 is the best token, the lowest id on a tie), top_k int32 (below 1 or above V: all), top_p and
    min_p float32, seeds int64 (the bits of an unsigned seed), positions int64 (tokens generated
    before this one). bitmask: [M, ceil(V / 32)] int32, bit i % 32 of word i / 32 allows token i;
    bitmask_rows: [B] int32, each row's row of it or -1; without it M is B. has_wide_rows: False
    promises that every row has temperature 0 or a top_k of 1 to 512, and saves two launches; a row
    that breaks the promise is reported as faulty.

    Order: edits and bitmask, temperature, top_k, top_p within what is left, min_p, then Gumbel
    noise that is a function of (seed, position, token id) alone. The result of a row depends on
    nothing else, to the bit. Runs on the current stream; can be captured in a CUDA graph.

    token_ids: [B] int32 or int64 and is_faulty: [B] bool are written, workspace: uint8 of at least
    `sample_workspace_bytes(B, V)`; each is allocated when None (token_ids as int64).
    Returns (token_ids, is_faulty). Faulty, with id 0: a row with NaN or without a finite maximum,
    and one whose edits or row of the bitmask lie outside what they point into.
    Raises KernelUnavailableError in a build without CUDA, ValueError for shapes, dtypes or devices
    that do not fit.
    """
    batch, vocab_size = logits.shape
    if token_ids is None:
        token_ids = torch.empty_like(seeds)
    if is_faulty is None:
        is_faulty = torch.empty_like(seeds, dtype=torch.bool)
    if workspace is None:
        n_bytes = _C.sample_workspace_bytes(batch, vocab_size)
        workspace = torch.empty(n_bytes, dtype=torch.uint8, device=logits.device)
    _C.sample(
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seeds,
        positions,
        token_ids,
        is_faulty,
        workspace,
        None if edits is None else edits.tensors,
        bitmask,
        bitmask_rows,
        has_wide_rows,
    )
    return token_ids, is_faulty


def sample_workspace_bytes(batch: int, vocab_size: int) -> int:
    """Bytes of `sample`'s workspace; they grow with both arguments."""
    return _C.sample_workspace_bytes(batch, vocab_size)
