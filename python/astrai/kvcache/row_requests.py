"""A ragged step seen as a step of decoding: each new token is a request of its own."""

from __future__ import annotations

from dataclasses import replace

import torch

from .cache import KVCache


def rows_as_requests(kv_cache: KVCache) -> KVCache:
    """The same step with one request for each new token: those of a request have its row of
    req_to_token, and one more token each.

    For attention that writes all new keys and values before it reads any. On the CPU, as the
    lengths are read on the host; without what decoding on a GPU needs beside them.
    Raises ValueError for a cache without lengths on the host.
    """
    if kv_cache.seq_lens_cpu is None or kv_cache.q_lens_cpu is None:
        raise ValueError("rows_as_requests: kv_cache has no lengths on the host (seq_lens_cpu)")
    lens = [
        seq_len - q_len + 1 + i
        for seq_len, q_len in zip(kv_cache.seq_lens_cpu, kv_cache.q_lens_cpu, strict=True)
        for i in range(q_len)
    ]
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    n_rows = len(lens)
    return replace(
        kv_cache,
        req_pool_indices=kv_cache.req_pool_indices.repeat_interleave(
            torch.tensor(kv_cache.q_lens_cpu)
        ),
        seq_lens=seq_lens,
        kv_indptr=torch.cat([seq_lens.new_zeros(1), seq_lens.cumsum(0, dtype=torch.int32)]),
        qo_indptr=torch.arange(n_rows + 1, dtype=torch.int32),
        q_tile_to_batch=None,
        q_tile_to_index=None,
        decode_split_indptr=None,
        decode_members=None,
        decode_n_units=None,
        decode_units=None,
        decode_stack_len=1,
        n_decode=n_rows,
        max_q_len=1,
        seq_lens_cpu=tuple(lens),
        q_lens_cpu=(1,) * n_rows,
        scratch={},
    )
