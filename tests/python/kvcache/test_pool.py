"""PagePool's Python layer: step plans against a naive model, the data classes, the device table."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

import astrai.kvcache
from astrai import _C
from astrai.kvcache import KVCache, KVStorage, PagePool, max_decode_splits
from astrai.kvcache.table import RequestTable

SPEC_FIELDS = [
    "k_buffer",
    "v_buffer",
    "req_to_token",
    "req_pool_indices",
    "seq_lens",
    "out_cache_loc",
    "max_len",
    "kv_indptr",
    "qo_indptr",
    "q_tile_to_batch",
    "q_tile_to_index",
    "decode_o_part",
    "decode_ml_part",
    "decode_out",
]


def make_pool(mode: str = "paged", **kwargs) -> PagePool:
    paged = {"page_size": 4, "n_tokens": 4 * 200} if mode == "paged" else {}
    sizes = {"max_batch_size": 4, "max_seq_len": 256, "device": "cpu", "dtype": torch.float32}
    return PagePool(2, 2, 8, **{**sizes, **paged, "n_heads": 4, **kwargs})


def admit_all(pool: PagePool, lens: list[int]) -> list[int]:
    """Requests with distinct prompts of these lengths."""
    prompts = [[1000 * i + j for j in range(n)] for i, n in enumerate(lens)]
    return [pool.admit(prompt).req_idx for prompt in prompts]


def prefix_sum(lens: list[int]) -> list[int]:
    return [sum(lens[:i]) for i in range(len(lens) + 1)]


def tile_order(starts, q_lens, row, tile):
    """The tiles that see fewest keys first."""
    return starts[row] + min((tile + 1) * 64, q_lens[row])


def assert_plan_is_right(pool, requests, starts, q_lens, n_decode=None):
    """plan_step against lists computed one token at a time."""
    table = pool.host.table.tolist()
    seq_lens = [start + n for start, n in zip(starts, q_lens, strict=True)]
    new = [
        (row, pos)
        for row, start, n in zip(requests, starts, q_lens, strict=True)
        for pos in range(start, start + n)
    ]
    tokens = {row: pool.tokens(row) for row in requests}

    step = pool.plan_step(requests, starts, q_lens, n_decode)

    cache = step.kv_cache
    if n_decode is None:
        n_decode = len(requests) if max(q_lens) == 1 else 0
    assert step.input_ids.dtype == step.position_ids.dtype == torch.int64
    assert step.input_ids.tolist() == [tokens[row][pos] for row, pos in new]
    assert step.position_ids.tolist() == [pos for _, pos in new]
    assert step.logits_indices.tolist() == [end - 1 for end in prefix_sum(q_lens)[1:]]
    assert step.is_decode == (n_decode == len(requests))
    assert cache.n_decode == n_decode
    assert cache.req_pool_indices.tolist() == requests
    assert cache.seq_lens.tolist() == seq_lens == list(cache.seq_lens_cpu)
    assert cache.out_cache_loc.tolist() == [table[row][pos] for row, pos in new]
    assert cache.max_len == max(seq_lens) and cache.max_q_len == max(q_lens)
    assert cache.q_lens_cpu == tuple(q_lens)
    assert cache.kv_indptr.tolist() == prefix_sum(seq_lens)
    assert cache.qo_indptr.tolist() == prefix_sum(q_lens)
    n_splits = [-(-seq_len // 512) for seq_len in seq_lens[:n_decode]]
    assert cache.decode_split_indptr.tolist() == prefix_sum(n_splits)
    if step.is_decode:
        assert cache.q_tile_to_batch is None and cache.q_tile_to_index is None
    else:
        tiles = [(i, t) for i, n in enumerate(q_lens) for t in range(-(-n // 64)) if i >= n_decode]
        tiles.sort(key=lambda tile: tile_order(starts, q_lens, *tile))
        assert cache.q_tile_to_batch.tolist() == [i for i, _ in tiles]
        assert cache.q_tile_to_index.tolist() == [t for _, t in tiles]
    int32 = [getattr(cache, name) for name in SPEC_FIELDS[2:11]]
    assert all(t.dtype == torch.int32 for t in int32 if isinstance(t, torch.Tensor))
    return step


def test_exported_names_are_sorted_and_exist():
    names = astrai.kvcache.__all__

    assert names == sorted(names)
    assert all(hasattr(astrai.kvcache, name) for name in names)


def test_kv_cache_begins_with_the_fields_of_the_specification():
    fields = dataclasses.fields(KVCache)

    assert [field.name for field in fields[: len(SPEC_FIELDS)]] == SPEC_FIELDS
    assert all(
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        for field in fields[len(SPEC_FIELDS) :]
    )
    public = [name for name in vars(KVCache) if not name.startswith("_")]
    assert sorted(public) == sorted(field.name for field in fields)  # no methods


def test_kv_cache_is_frozen():
    pool = make_pool()
    rows = admit_all(pool, [3])
    cache = pool.bind_tasks(rows, [3], 0)

    with pytest.raises(dataclasses.FrozenInstanceError):
        cache.max_len = 4


def test_storage_has_one_slot_that_no_request_can_own():
    pool = make_pool(n_tokens=16)

    rows = admit_all(pool, [12, 4])

    assert pool.k_buffer.shape == pool.v_buffer.shape == (2, 17, 2, 8)
    owned = {
        slot for row, n in zip(rows, (12, 4), strict=True) for slot in pool.table.host[row, :n]
    }
    assert pool.host.reserved_slot == 16 and len(owned) == 16 and 16 not in owned


def test_a_remainder_of_the_pool_has_no_storage():
    pool = make_pool(n_tokens=18)

    assert pool.host.n_tokens == 16 and pool.k_buffer.shape[1] == 17


@pytest.mark.parametrize("mode", ["paged", "contiguous"])
def test_prefill_of_ragged_prompts(mode):
    pool = make_pool(mode)
    rows = admit_all(pool, [70, 10, 130])

    step = assert_plan_is_right(pool, rows, [0, 0, 0], [70, 10, 130])

    assert step.kv_cache.q_tile_to_batch.tolist() == [1, 0, 2, 0, 2, 2]
    assert step.kv_cache.q_tile_to_index.tolist() == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("mode", ["paged", "contiguous"])
def test_decode_chunk_and_mixed_steps_equal_the_naive_model(mode):
    rng = random.Random(7)
    pool = make_pool(mode)
    rows = admit_all(pool, [70, 9, 100])
    lens = dict(zip(rows, (70, 9, 100), strict=True))
    written = dict.fromkeys(rows, 0)

    for _ in range(40):
        batch = rng.sample(rows, rng.randint(1, 3))
        batch.sort(key=lambda row: written[row] < lens[row])  # those that decode come first
        n_decode = sum(written[row] == lens[row] for row in batch)
        starts, q_lens = [], []
        for row in batch:
            if written[row] == lens[row]:  # decode: one more sampled token
                pool.append(row, rng.randrange(5000))
                lens[row] += 1
                assert pool.extend(row, lens[row])
            starts.append(written[row])
            q_lens.append(rng.randint(1, min(40, lens[row] - written[row])))
        assert_plan_is_right(pool, batch, starts, q_lens, n_decode)
        for row, n in zip(batch, q_lens, strict=True):
            written[row] += n
            pool.commit(row, written[row])
        pool.check_integrity()
    assert all(n > 0 for n in written.values())


def test_bind_tasks_is_the_cache_of_the_same_step():
    pool = make_pool()
    rows = admit_all(pool, [20, 6])

    prefill = pool.bind_tasks(rows, [20, 6], start_pos=0)
    chunk = pool.bind_tasks(rows, [20, 6], start_pos=[8, 5])
    decode = pool.bind_tasks(rows, [20, 6])

    assert prefill.q_lens_cpu == (20, 6)
    assert chunk.q_lens_cpu == (12, 1) and chunk.qo_indptr.tolist() == [0, 12, 13]
    assert decode.q_lens_cpu == (1, 1) and decode.q_tile_to_batch is None
    expected = [pool.table.host[rows[0], 19].item(), pool.table.host[rows[1], 5].item()]
    assert decode.out_cache_loc.tolist() == expected


def test_a_chunk_of_one_prompt_token_does_not_decode():
    pool = make_pool()
    rows = admit_all(pool, [20, 6, 70])

    step = pool.plan_step(rows, [19, 5, 0], [1, 1, 70], n_decode=1)
    alone = pool.plan_step(rows[1:2], [5], [1], n_decode=0)

    assert not step.is_decode and not alone.is_decode
    assert step.kv_cache.q_tile_to_batch.tolist() == [1, 2, 2]
    assert alone.kv_cache.q_tile_to_batch.tolist() == [0]


@pytest.mark.parametrize(
    ("n_decode", "message"),
    [
        (2, r"\(request 1\) is among the first n_decode 2 and has 6 new tokens"),
        (3, "n_decode is 3; 0 to the 2 rows"),
        (-1, "n_decode is -1"),
    ],
)
def test_requests_that_cannot_decode_are_refused(n_decode, message):
    pool = make_pool()
    rows = admit_all(pool, [20, 6])

    with pytest.raises(ValueError, match=message):
        pool.plan_step(rows, [19, 0], [1, 6], n_decode)


def test_an_earlier_step_stays_readable():
    pool = make_pool()
    rows = admit_all(pool, [20, 6])
    first = pool.bind_tasks(rows, [20, 6], 0)
    before = first.out_cache_loc.clone()

    for n in range(1, 20):
        pool.bind_tasks(rows[:1], [n], 0)

    assert torch.equal(first.out_cache_loc, before)
    assert first.seq_lens.tolist() == [20, 6]


@pytest.mark.parametrize(
    ("seq_lens", "start_pos", "message"),
    [
        ([20, 6], 6, r"request \d has seq_len 6 and start_pos 6; prefill sequence lengths must"),
        ([20, 6], [0, -1], "start_pos -1"),
        ([20, 0], None, "seq_len 0"),
        ([20], 0, "2 req_indices, 1 seq_lens and 1 start_pos"),
        ([20, 6], [0], "2 req_indices, 2 seq_lens and 1 start_pos"),
    ],
)
def test_bind_tasks_refuses_lengths_that_do_not_fit(seq_lens, start_pos, message):
    pool = make_pool()
    rows = admit_all(pool, [20, 6])

    with pytest.raises(ValueError, match=message):
        pool.bind_tasks(rows, seq_lens, start_pos)


def test_a_step_over_unknown_tokens_is_refused():
    pool = make_pool()
    (row,) = admit_all(pool, [20])

    with pytest.raises(ValueError, match=r"21|20"):
        pool.bind_tasks([row], [21])


@pytest.mark.parametrize("mode", ["paged", "contiguous"])
def test_keys_and_values_come_back_from_their_slots(mode):
    pool = make_pool(mode)
    rows = admit_all(pool, [30, 7])
    cache = pool.bind_tasks(rows, [30, 7], 0)
    k, v = torch.randn(2, 37, 2, 8)

    pool.k_buffer[1, cache.out_cache_loc] = k
    pool.v_buffer[1, cache.out_cache_loc] = v

    read = [cache.req_to_token[row, :n] for row, n in zip(rows, (30, 7), strict=True)]
    assert torch.equal(pool.k_buffer[1, torch.cat(read)], k)
    assert torch.equal(pool.v_buffer[1, torch.cat(read)], v)


def test_the_cpu_table_is_the_host_table():
    pool = make_pool()
    (row,) = admit_all(pool, [5])
    before = pool.table.device[row, :9].tolist()

    pool.append_batch([row] * 4, [1, 2, 3, 4])
    pool.extend(row, 9)

    assert before[:5] == pool.table.device[row, :5].tolist()
    assert pool.table.device[row, :9].tolist() == pool.host.table.tolist()[row][:9]
    assert pool.table.device.data_ptr() == pool.table.host.data_ptr()


def test_the_table_outlives_the_pool():
    pool = make_pool()
    (row,) = admit_all(pool, [5])
    table, expected = pool.table.device, pool.table.device[row].tolist()

    del pool

    assert table[row].tolist() == expected


def test_updates_keep_a_copied_table_equal_to_the_hosts():
    rng = random.Random(3)
    host = _C.PagePool(4, 64, 4, 4 * 40)
    table = RequestTable(host, torch.device("cpu"))
    table._is_alias = False  # a device table that happens to lie in host memory
    table.device = table.host.clone()
    live: dict[int, int] = {}

    for _ in range(60):
        if live and rng.random() < 0.4:
            row = rng.choice(list(live))
            host.release(row)
            del live[row]
        elif admission := host.admit([rng.randrange(9) for _ in range(rng.randint(1, 50))]):
            live[admission.req_idx] = host.n_slots(admission.req_idx)
        spans = host.take_dirty()
        update = torch.empty(table.n_update_int32(spans), dtype=torch.int32)
        table.write_update(spans, update)
        table.apply_update(update)
        for row, n in live.items():
            assert torch.equal(table.device[row, :n], table.host[row, :n])


def test_workspace_is_sized_for_every_split_of_a_full_pool():
    pool = make_pool(max_seq_len=2048, n_tokens=4 * 600)
    rows = admit_all(pool, [1000, 513, 600, 200])

    cache = pool.bind_tasks(rows, [1000, 513, 600, 200])

    assert cache.decode_o_part.dtype == cache.decode_ml_part.dtype == torch.float32
    assert cache.decode_o_part.shape[0] >= int(cache.decode_split_indptr[-1])
    assert cache.decode_o_part.shape[1:] == (4, 8)
    assert cache.decode_ml_part.shape == (cache.decode_o_part.shape[0], 4, 2)
    assert cache.decode_out.shape == (4, 4, 8) and cache.decode_out.dtype == torch.float32


def test_the_workspace_holds_every_split_of_requests_that_share_slots():
    pool = make_pool(max_seq_len=2048, n_tokens=4 * 420)
    prompt = list(range(1600))
    rows = []
    for i in range(4):
        rows.append(pool.admit([*prompt, 5000 + i]).req_idx)
        pool.commit(rows[-1], len(prompt))

    cache = pool.bind_tasks(rows, [1601] * 4)

    assert int(cache.decode_split_indptr[-1]) == 4 * 4
    assert len(cache.decode_o_part) == len(cache.decode_ml_part) == max_decode_splits(4, 2048)
    assert cache.decode_stack_len == _C.decode_stack_len(4, 2, 8)
    assert pool.bind_tasks(rows[:1], [1]).decode_o_part is cache.decode_o_part


def test_max_decode_splits_bounds_every_batch():
    rng = random.Random(5)

    def n_splits(lens: list[int]) -> int:
        return sum(max(1, -(-n // 512)) for n in lens)

    for _ in range(200):
        max_batch_size, max_seq_len = rng.randint(1, 8), rng.randint(1, 3000)
        lens = [rng.randint(0, max_seq_len) for _ in range(rng.randint(0, max_batch_size))]
        assert n_splits(lens) <= max_decode_splits(max_batch_size, max_seq_len)
        n_tokens = sum(lens)
        assert n_splits(lens) <= max_decode_splits(max_batch_size, max_seq_len, n_tokens)
    assert max_decode_splits(300, 1025) == n_splits([1025] * 300)
    assert max_decode_splits(300, 5000, 512 * 700) == 700 + 300
    assert max_decode_splits(2, 1024) == 4 * n_splits([1024] * 2)  # shared by four thread blocks


def test_without_n_heads_there_is_no_workspace():
    pool = make_pool(n_heads=None)
    cache = pool.bind_tasks(admit_all(pool, [3]), [3])

    assert cache.decode_o_part is cache.decode_ml_part is cache.decode_out is None


def test_slots_beyond_int32_are_refused_before_memory_is_taken():
    with pytest.raises(ValueError, match="int32 slot index limit"):
        make_pool("contiguous", max_batch_size=2**16, max_seq_len=2**16)


@pytest.mark.parametrize("sizes", [(0, 1, 1, 8), (4, 1, 0, 8)])
def test_storage_refuses_sizes_below_one(sizes):
    with pytest.raises(ValueError, match="each must be at least 1"):
        KVStorage(*sizes, "cpu", torch.float32)


def test_storage_refuses_integer_types():
    with pytest.raises(ValueError, match=r"dtype is torch\.int8"):
        KVStorage(4, 1, 1, 8, "cpu", torch.int8)


def test_storage_counts_its_bytes():
    assert KVStorage(10, 2, 3, 8, "cpu", torch.bfloat16).n_bytes == 2 * 2 * 10 * 3 * 8 * 2
