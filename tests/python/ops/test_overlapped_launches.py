"""Kernels that start while the one before still runs wait for what they read and overwrite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rotary_reference import rotary_table
from torch import Tensor

from astrai.extension import ops

N_TOKENS, N_HEADS, N_KV_HEADS, HEAD_DIM = 700, 8, 2, 128
HIDDEN = N_HEADS * HEAD_DIM


def layer(x: Tensor, between: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """A chain in which every kernel reads what the one before wrote, and buffers are used again.

    between: called after every launch. Returns the last rows and the keys."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    weight = torch.randn(HIDDEN, generator=generator, device="cuda").bfloat16()
    freqs = rotary_table(torch.arange(N_TOKENS, device="cuda"), HEAD_DIM)
    cache = torch.zeros(2, N_TOKENS, N_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    slots = torch.arange(N_TOKENS, dtype=torch.int32, device="cuda").flip(0)
    residual, rows = x.clone(), torch.full_like(x, torch.nan)
    wide = torch.full((N_TOKENS, 2 * HIDDEN), torch.nan, dtype=x.dtype, device="cuda")
    heads = rows.view(N_TOKENS, N_HEADS, HEAD_DIM)
    k, v, q = heads.split([N_KV_HEADS, N_KV_HEADS, N_HEADS - 2 * N_KV_HEADS], dim=1)
    ids = torch.arange(N_TOKENS, device="cuda").flip(0)
    for _ in range(4):
        ops.rms_norm(residual, weight, 1e-5, out=rows)
        between()
        ops.rotary_store_kv(q, k, v, freqs, *cache, slots, q_out=q)
        between()
        ops.rotary_emb(heads, freqs, out=heads)
        between()
        ops.store_kv(k, v, *cache, slots)
        between()
        ops.add_rms_norm(rows, residual, weight, 1e-5, out=wide[:, :HIDDEN])
        between()
        ops.embedding(ids, wide[:, :HIDDEN], out=wide[:, HIDDEN:])
        between()
        ops.silu_mul(wide, out=rows)
        between()
        ops.add_rms_norm(rows, residual, weight, 1e-5, out=rows)
        between()
    return rows, cache


@pytest.mark.gpu
def test_t58_a_chain_without_waiting_has_the_bits_of_one_kernel_at_a_time() -> None:
    x = torch.randn(N_TOKENS, HIDDEN, device="cuda").bfloat16()
    rows, cache = layer(x, torch.cuda.synchronize)
    for _ in range(20):
        again, cache_again = layer(x, lambda: None)
        assert torch.equal(again, rows)
        assert torch.equal(cache_again, cache)


@pytest.mark.gpu
def test_t58_a_kernel_waits_for_a_slow_one_that_is_not_launched_early() -> None:
    x = torch.randn(64, HIDDEN, device="cuda").bfloat16()
    weight = torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")
    expected = ops.rms_norm(x, weight, 1e-5)
    for _ in range(20):
        late = torch.zeros_like(x)
        torch.cuda._sleep(200_000)
        late.copy_(x)
        assert torch.equal(ops.rms_norm(late, weight, 1e-5), expected)
