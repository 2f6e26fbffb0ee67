"""The top_logprobs kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C


def top_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    n_top: int,
    *,
    chosen: Tensor | None = None,
    top_ids: Tensor | None = None,
    logprobs: Tensor | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """log_softmax of the unmodified logits at the chosen tokens, and the n_top best of each row.

    logits: [B, V] bfloat16, float16 or float32 on a GPU, any stride from row to row, V up to
    262144. token_ids: [B] int32 or int64; an id outside the vocabulary traps on the device.
    n_top: 0 to 64. Values are natural logarithms, none below -9999; equal logits are ordered by id.
    Runs on the current stream; can be captured in a CUDA graph.

    chosen: [B] float32, top_ids: [B, n_top] int32 and logprobs: [B, n_top] float32 are written,
    workspace: uint8 of at least `top_logprobs_workspace_bytes(B, V)`; each is allocated when None.
    Returns (chosen, top_ids, logprobs); past a row's last finite logit ids are -1.
    Raises KernelUnavailableError in a build without CUDA, ValueError for shapes, dtypes or devices
    that do not fit.
    """
    batch, vocab_size = logits.shape
    device = logits.device
    if chosen is None:
        chosen = torch.empty(batch, dtype=torch.float32, device=device)
    if top_ids is None:
        top_ids = torch.empty(batch, n_top, dtype=torch.int32, device=device)
    if logprobs is None:
        logprobs = torch.empty(batch, n_top, dtype=torch.float32, device=device)
    if workspace is None:
        n_bytes = _C.top_logprobs_workspace_bytes(batch, vocab_size)
        workspace = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    _C.top_logprobs(logits, token_ids, chosen, top_ids, logprobs, workspace)
    return chosen, top_ids, logprobs


def top_logprobs_workspace_bytes(batch: int, vocab_size: int) -> int:
    """Bytes of `top_logprobs`' workspace; they grow with both arguments."""
    return _C.top_logprobs_workspace_bytes(batch, vocab_size)
