"""Writing this step's keys and values into the pool, and gathering a batch's slots from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from astrai.kvcache import KVCache


def host_lens(kv_cache: KVCache) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(seq_lens, q_lens) on the host, read back from the device once per step at most."""
    if kv_cache.seq_lens_cpu is not None and kv_cache.q_lens_cpu is not None:
        return kv_cache.seq_lens_cpu, kv_cache.q_lens_cpu
    lens = kv_cache.scratch.get("host_lens")
    if lens is None:
        seq_lens = tuple(kv_cache.seq_lens.tolist())
        lens = (seq_lens, tuple(kv_cache.qo_indptr.diff().tolist()))
        kv_cache.scratch["host_lens"] = lens
    return lens


def layer_kv(kv_cache: KVCache, layer_id: int) -> tuple[Tensor, Tensor]:
    """k_buffer[layer_id] and v_buffer[layer_id]; all layers are taken apart once per step."""
    layers = kv_cache.scratch.get("layers")
    if layers is None:
        layers = list(zip(kv_cache.k_buffer.unbind(0), kv_cache.v_buffer.unbind(0), strict=True))
        kv_cache.scratch["layers"] = layers
    pair: tuple[Tensor, Tensor] = layers[layer_id]
    return pair


def write_kv(kv_cache: KVCache, layer_id: int, k: Tensor | None, v: Tensor | None) -> None:
    """Write k and v [total_q, n_kv_heads, head_dim] to slots out_cache_loc of one layer; None are
    there already."""
    if k is None or v is None:
        return
    slots = kv_cache.scratch.get("write_slots")
    if slots is None:
        slots = kv_cache.out_cache_loc.to(torch.int64)  # what index_copy_ takes
        kv_cache.scratch["write_slots"] = slots
    kv_cache.k_buffer[layer_id].index_copy_(0, slots, k)
    kv_cache.v_buffer[layer_id].index_copy_(0, slots, v)


def packed_slots(kv_cache: KVCache) -> Tensor:
    """int64 [sum of seq_lens]: slots of every token of every request, in kv_indptr order.

    Computed once per step, without synchronising with the device.
    """
    slots = kv_cache.scratch.get("packed_slots")
    if slots is None:
        total = sum(host_lens(kv_cache)[0])
        starts = kv_cache.kv_indptr[:-1]
        lens = kv_cache.seq_lens
        request = torch.repeat_interleave(lens, output_size=total)
        position = torch.arange(total, device=lens.device) - starts[request]
        slots = kv_cache.req_to_token[kv_cache.req_pool_indices[request], position].to(torch.int64)
        kv_cache.scratch["packed_slots"] = slots
    return slots
