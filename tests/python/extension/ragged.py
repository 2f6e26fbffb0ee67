"""Ragged batches over a scattered, poisoned pool, with the float64 answer beside them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from astrai.kvcache import KVCache
from reference import reference_attention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class RaggedBatch:
    q: Tensor  # [total_q, n_heads, head_dim]
    k: Tensor  # [total_q, n_kv_heads, head_dim] new rows, not in the pool yet
    v: Tensor
    kv_cache: KVCache
    expected: Tensor  # float64 [total_q, n_heads, head_dim]
    all_k: list[Tensor]  # per request [seq_len, n_kv_heads, head_dim]
    all_v: list[Tensor]


def slots_of(layout: str, seq_lens: list[int], generator: torch.Generator) -> list[Tensor]:
    """Token slots of each request: "scattered" over the pool, or a "contiguous" run each."""
    total = sum(seq_lens)
    order = torch.arange(3, 3 + total)  # slots 0 to 2 and some behind belong to nobody
    if layout == "scattered":
        order = 3 + torch.randperm(total + 5, generator=generator)[:total]
    return list(order.split(seq_lens))


def make_ragged(
    seq_lens: list[int],
    q_lens: list[int],
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    layout: str = "scattered",
    n_layers: int = 2,
    layer_id: int = 1,
    seed: int = 0,
    with_host_lens: bool = True,
) -> RaggedBatch:
    """Random requests whose cached tokens are in layer layer_id; every other slot holds NaN."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    all_k = [normal(n, n_kv_heads, head_dim) for n in seq_lens]
    all_v = [normal(n, n_kv_heads, head_dim) for n in seq_lens]
    slots = slots_of(layout, seq_lens, generator)
    size = 3 + sum(seq_lens) + 5
    pool_shape = (n_layers, size, n_kv_heads, head_dim)
    k_buffer = torch.full(pool_shape, float("nan"), dtype=dtype)
    v_buffer = torch.full(pool_shape, float("nan"), dtype=dtype)
    # Rows of the table in another order than the batch; entries behind a request are stale.
    batch = len(seq_lens)
    table = torch.full((batch + 1, max(seq_lens) + 4), size - 1, dtype=torch.int32)
    rows = torch.randperm(batch + 1, generator=generator)[:batch].to(torch.int32)
    for i, (seq_len, q_len) in enumerate(zip(seq_lens, q_lens, strict=True)):
        table[rows[i], :seq_len] = slots[i].to(torch.int32)
        cached = seq_len - q_len
        k_buffer[layer_id, slots[i][:cached]] = all_k[i][:cached]
        v_buffer[layer_id, slots[i][:cached]] = all_v[i][:cached]

    def new_rows(per_request: list[Tensor]) -> Tensor:
        return torch.cat([x[len(x) - n :] for x, n in zip(per_request, q_lens, strict=True)])

    def indptr(lens: list[int]) -> Tensor:
        return torch.tensor([0, *lens]).cumsum(0).to(torch.int32)

    q = normal(sum(q_lens), n_heads, head_dim)
    expected = torch.cat(
        [
            reference_attention(rows_q, all_k[i], all_v[i])
            for i, rows_q in enumerate(q.split(q_lens))
        ]
    )
    kv_cache = KVCache(
        k_buffer=k_buffer,
        v_buffer=v_buffer,
        req_to_token=table,
        req_pool_indices=rows,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        out_cache_loc=new_rows(slots).to(torch.int32),
        max_len=max(seq_lens),
        kv_indptr=indptr(seq_lens),
        qo_indptr=indptr(q_lens),
        q_tile_to_batch=None,
        q_tile_to_index=None,
        decode_o_part=None,
        decode_ml_part=None,
        decode_out=None,
        max_q_len=max(q_lens),
        seq_lens_cpu=tuple(seq_lens) if with_host_lens else None,
        q_lens_cpu=tuple(q_lens) if with_host_lens else None,
    )
    return RaggedBatch(q, new_rows(all_k), new_rows(all_v), kv_cache, expected, all_k, all_v)


def on_device(batch: RaggedBatch, device: str) -> RaggedBatch:
    """The same batch with all its tensors, except the expected ones, on another device."""
    fields = {
        field.name: getattr(batch.kv_cache, field.name)
        for field in dataclasses.fields(batch.kv_cache)
    }
    moved = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in fields.items()
    }
    return RaggedBatch(
        batch.q.to(device),
        batch.k.to(device),
        batch.v.to(device),
        KVCache(**moved),
        batch.expected,
        batch.all_k,
        batch.all_v,
    )
