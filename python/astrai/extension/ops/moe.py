"""The kernels of a mixture of experts: routing, sorting, two grouped products, the weighted sum.

    ids, weights = moe_route(logits, n_active, norm_topk_prob)
    order, tiles = moe_sort(ids, n_experts)
    parts = moe_down(moe_gate_up(x, gate_up, order, tiles), down, order, tiles)
    out = moe_combine(parts, weights)

T rows, A experts of each (n_active), P = T * A pairs of a row and one of its experts, E experts, H
hidden, I intermediate; H and I are multiples of 8. Tensors are contiguous, on a GPU, bfloat16 or
float16 where nothing else is said. All run on the current stream, read nothing on the host and have
grids that do not depend on the routing, so they can be captured in a CUDA graph. A row's bits
depend on that row alone. No autograd. Each raises KernelUnavailableError for another dtype or in a
build without CUDA, ValueError for shapes, strides or devices that do not fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from astrai import _C


def moe_route(logits: Tensor, n_active: int, norm_topk_prob: bool) -> tuple[Tensor, Tensor]:
    """Choose the n_active heaviest experts of each row; of equal ones the lower number.

    logits: [T, E], up to 512 experts; n_active: 1 to 32. The softmax over all of them is float32;
    norm_topk_prob: scale the weights of the chosen ones to a sum of 1.
    Returns (ids int32, weights float32), both [T, n_active], heaviest first."""
    shape = (logits.shape[0], n_active)
    ids = logits.new_empty(shape, dtype=torch.int32)
    weights = logits.new_empty(shape, dtype=torch.float32)
    _C.moe_route(logits, ids, weights, norm_topk_prob)
    return ids, weights


def moe_sort(ids: Tensor, n_experts: int) -> tuple[Tensor, Tensor]:
    """Sort pairs by expert, stably.

    ids: [T, A] int32, each in [0, n_experts), another traps on the device; n_experts: up to 512.
    Returns (order int32 [P], tiles int32 [n, 4]): the pair t * A + j at each position, and what the
    products work on, whose number n depends on the shapes alone."""
    n_pairs = ids.numel()
    order = ids.new_empty(n_pairs)
    tiles = ids.new_empty((_C.moe_max_tiles(n_pairs, n_experts), 4))
    _C.moe_sort(ids, order, tiles, n_experts)
    return order, tiles


def moe_gate_up(
    x: Tensor, gate_up: Tensor, order: Tensor, tiles: Tensor, out: Tensor | None = None
) -> Tensor:
    """silu(gate) * up of each pair, summed in float32 and rounded once.

    x: [T, H]; gate_up: [E, 2 I, H], I gate rows and then I up rows; order, tiles: of `moe_sort`.
    Returns [P, I], by position in the order; written to out where one is given."""
    if out is None:
        out = x.new_empty((order.shape[0], gate_up.shape[1] // 2))
    _C.moe_gate_up(x, gate_up, order, tiles, out)
    return out


def moe_down(
    gated: Tensor, down: Tensor, order: Tensor, tiles: Tensor, out: Tensor | None = None
) -> Tensor:
    """The down projection of each pair, summed in float32 and rounded once.

    gated: [P, I] by position; down: [E, H, I]; order, tiles: of `moe_sort`.
    Returns [P, H], by pair: the parts of row t are rows t * A to t * A + A - 1. They are written
    to out where one is given."""
    if out is None:
        out = gated.new_empty((gated.shape[0], down.shape[1]))
    _C.moe_down(gated, down, order, tiles, out)
    return out


def moe_combine(parts: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
    """The weighted sum of each row's parts, in float32 by ascending j, rounded once.

    parts: [T * A, H]; weights: [T, A] float32. Returns [T, H]; written to out where one is
    given."""
    if out is None:
        out = parts.new_empty((weights.shape[0], parts.shape[1]))
    _C.moe_combine(parts, weights, out)
    return out
