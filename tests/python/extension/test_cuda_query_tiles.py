"""The query tiles that CudaBackend hands to the prefill kernel."""

from __future__ import annotations

import dataclasses

import torch
from ragged import make_ragged

from astrai.extension.backend.cuda import query_tiles


def test_a_cache_without_tiles_gets_every_row_covered_once_and_only_once_made():
    cache = make_ragged([130, 64, 1, 70], [130, 64, 1, 65]).kv_cache

    batch, index, rows = query_tiles(cache)

    assert rows == 64
    assert batch.tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert index.tolist() == [0, 1, 2, 0, 0, 0, 1]
    assert batch.dtype == index.dtype == torch.int32
    assert batch.is_contiguous() and index.is_contiguous()
    assert query_tiles(cache)[0] is batch


def test_requests_that_decode_get_no_tiles():
    made = make_ragged([9, 30, 70, 1], [1, 1, 65, 1]).kv_cache

    batch, index, _ = query_tiles(dataclasses.replace(made, n_decode=2))

    assert batch.tolist() == [2, 2, 3]
    assert index.tolist() == [0, 1, 0]


def test_the_tiles_of_the_plan_are_used_with_their_own_length():
    planned = torch.zeros(1, dtype=torch.int32)
    made = make_ragged([5], [5]).kv_cache
    cache = dataclasses.replace(
        made, q_tile_to_batch=planned, q_tile_to_index=planned, q_tile_rows=32
    )

    batch, index, rows = query_tiles(cache)

    assert batch is planned
    assert index is planned
    assert rows == 32
