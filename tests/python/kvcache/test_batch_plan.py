"""BatchPlan against a naive numpy model, over random pools, chunked prefill and padding."""

from __future__ import annotations

import ctypes
import gc
from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai._C import BatchPlan, Layout, PagePool

Int32Array = npt.NDArray[np.int32]
MAX_SEQ_LEN = 24
UNTOUCHED = -77


@dataclass
class Step:
    """The rows of one step, and what the request of each knows."""

    req_indices: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    q_lens: list[int] = field(default_factory=list)


def table_of(pool: PagePool) -> Int32Array:
    return np.asarray(pool.table).reshape(pool.max_batch_size, pool.max_seq_len)


def prefix_sum(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths, dtype=np.int64).tolist()]


def naive_sections(
    pool: PagePool, step: Step, q_tile_rows: int, split_len: int, n_padding: int
) -> dict[str, list[int]]:
    table = table_of(pool)
    ids, positions, slots, tiles = [], [], [], []
    seq_lens = [start + q_len for start, q_len in zip(step.starts, step.q_lens, strict=True)]
    for req_idx, start, seq_len in zip(step.req_indices, step.starts, seq_lens, strict=True):
        ids += pool.tokens(req_idx)[start:seq_len]
        positions += range(start, seq_len)
        slots += table[req_idx, start:seq_len].tolist()
    q_lens = step.q_lens + [1] * n_padding
    seq_lens += [1] * n_padding
    for row, q_len in enumerate(q_lens):
        tiles += [(row, tile) for tile in range(-(-q_len // q_tile_rows))]
    n_cached = [seq_len - q_len for seq_len, q_len in zip(seq_lens, q_lens, strict=True)]

    def order(tile: tuple[int, int]) -> int:  # rows of one token first, then fewest visible keys
        row, index = tile
        q_len = q_lens[row]
        return 0 if q_len == 1 else n_cached[row] + min((index + 1) * q_tile_rows, q_len)

    tiles.sort(key=order)
    return {
        "token_ids": ids + [0] * n_padding,
        "position_ids": positions + [0] * n_padding,
        "out_cache_loc": slots + [pool.reserved_slot] * n_padding,
        "seq_lens": seq_lens,
        "req_pool_indices": step.req_indices + [pool.max_batch_size] * n_padding,
        "kv_indptr": prefix_sum(seq_lens),
        "qo_indptr": prefix_sum(q_lens),
        "logits_indices": [end - 1 for end in prefix_sum(q_lens)[1:]],
        "q_tile_to_batch": [row for row, _ in tiles],
        "q_tile_to_index": [tile for _, tile in tiles],
        "decode_split_indptr": prefix_sum([-(-seq_len // split_len) for seq_len in seq_lens]),
    }


def sections_of(layout: Layout, staging: Int32Array) -> dict[str, list[int]]:
    return {
        name: staging[offset : offset + length].tolist()
        for name, (offset, length) in layout.sections.items()
    }


def staging_for(total_q: int, n_rows: int) -> Int32Array:
    return np.full(BatchPlan.staging_size(total_q, n_rows), UNTOUCHED, np.int32)


pools = st.builds(
    PagePool,
    st.integers(1, 6),
    st.just(MAX_SEQ_LEN),
    st.sampled_from([1, 4]),
    st.none() | st.integers(40, 6 * MAX_SEQ_LEN),
)


@st.composite
def steps(draw: st.DrawFn, pool: PagePool) -> Step:
    """Admits random prompts, grows them, and cuts a random range out of some."""
    step = Step()
    for _ in range(draw(st.integers(1, pool.max_batch_size))):
        # Few distinct ids, so that prompts share prefixes.
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=MAX_SEQ_LEN - 4))
        admission = pool.admit(prompt)
        if admission is None:
            break
        req_idx, n_known = admission.req_idx, len(prompt)
        for token_id in draw(st.lists(st.integers(0, 9), max_size=3)):
            if not pool.extend(req_idx, n_known + 1):
                break
            pool.append(req_idx, token_id)
            n_known += 1
        if draw(st.booleans()):
            pool.commit(req_idx, len(prompt))
        if not draw(st.integers(0, 3)):
            pool.release(req_idx)
        elif draw(st.integers(0, 3)):
            start = draw(st.integers(0, n_known - 1))
            step.req_indices.append(req_idx)
            step.starts.append(start)
            step.q_lens.append(draw(st.integers(1, n_known - start)))
    return step


@given(data=st.data())
def test_every_section_equals_the_naive_model(data: st.DataObject) -> None:
    pool = data.draw(pools)
    step = data.draw(steps(pool))
    n_padding = data.draw(st.integers(0 if step.req_indices else 1, 3))
    q_tile_rows = data.draw(st.sampled_from([1, 2, 3, 64]))
    split_len = data.draw(st.sampled_from([1, 5, 512]))
    n_rows, total_q = len(step.req_indices) + n_padding, sum(step.q_lens) + n_padding
    staging = staging_for(total_q, n_rows)
    plan = BatchPlan(pool, total_q, n_rows, split_len)

    layout = plan.build(
        step.req_indices,
        step.starts,
        step.q_lens,
        staging=staging,
        q_tile_rows=q_tile_rows,
        pad_to=n_rows if n_padding else None,
    )

    expected = naive_sections(pool, step, q_tile_rows, split_len, n_padding)
    assert sections_of(layout, staging) == expected
    assert (layout.n_rows, layout.total_q) == (n_rows, total_q)
    assert layout.max_len == max(expected["seq_lens"])
    assert layout.max_q_len == max([*step.q_lens, *([1] * n_padding)])
    assert layout.n_tiles == len(expected["q_tile_to_batch"])
    assert layout.n_splits == expected["decode_split_indptr"][-1]
    places = sorted(layout.sections.values())
    assert all(offset % 4 == 0 for offset, _ in places)
    ends = [offset + length for offset, length in places]
    assert all(end <= begin for end, (begin, _) in zip(ends, places[1:], strict=False))
    assert layout.n_int32 == ends[-1] <= len(staging)
    assert (staging[layout.n_int32 :] == UNTOUCHED).all()


@given(data=st.data())
def test_prefill_in_chunks_packs_what_prefill_at_once_packs(data: st.DataObject) -> None:
    pool = data.draw(pools)
    prompt = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=MAX_SEQ_LEN - 1))
    admission = pool.admit(prompt)
    assert admission is not None
    plan = BatchPlan(pool, MAX_SEQ_LEN, 1)
    staging = staging_for(MAX_SEQ_LEN, 1)

    def packed(start: int, q_len: int) -> list[tuple[int, int, int]]:
        layout = plan.build([admission.req_idx], [start], [q_len], staging=staging)
        sections = sections_of(layout, staging)
        names = ("token_ids", "position_ids", "out_cache_loc")
        return list(zip(*(sections[name] for name in names), strict=True))

    chunk = data.draw(st.integers(1, len(prompt)))
    in_chunks = []
    for start in range(0, len(prompt), chunk):
        in_chunks += packed(start, min(chunk, len(prompt) - start))
    assert in_chunks == packed(0, len(prompt))


@given(data=st.data())
def test_dirty_spans_bring_a_copy_of_the_table_up_to_date(data: st.DataObject) -> None:
    pool = PagePool(3, MAX_SEQ_LEN, data.draw(st.sampled_from([1, 4])), 3 * MAX_SEQ_LEN)
    copy = table_of(pool).copy()
    plan = BatchPlan(pool, MAX_SEQ_LEN, 3)
    staging = staging_for(MAX_SEQ_LEN, 3)
    lengths: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["admit", "extend", "release"]))
        if action == "admit" or not lengths:
            n_tokens = data.draw(st.integers(1, MAX_SEQ_LEN - 1))
            admission = pool.admit([7] * n_tokens)
            if admission is not None:
                lengths[admission.req_idx] = n_tokens
        elif action == "extend":
            req_idx = data.draw(st.sampled_from(sorted(lengths)))
            new_len = data.draw(st.integers(lengths[req_idx], MAX_SEQ_LEN))
            if pool.extend(req_idx, new_len):
                lengths[req_idx] = new_len
        else:
            req_idx = data.draw(st.sampled_from(sorted(lengths)))
            pool.release(req_idx)
            del lengths[req_idx]
        if lengths and data.draw(st.booleans()):
            layout = plan.build([min(lengths)], [0], [1], staging=staging)
            for req_idx, begin, end in layout.dirty_spans:
                copy[req_idx, begin:end] = table_of(pool)[req_idx, begin:end]
            for req_idx, n_slots in lengths.items():
                assert (
                    copy[req_idx, :n_slots].tolist() == table_of(pool)[req_idx, :n_slots].tolist()
                )


@pytest.fixture
def pool() -> PagePool:
    pool = PagePool(4, MAX_SEQ_LEN, 4, 4 * MAX_SEQ_LEN)
    admitted = [pool.admit([10, 11, 12, 13, 14]), pool.admit([20, 21])]
    assert [admission.req_idx for admission in admitted if admission] == [0, 1]
    return pool


@pytest.mark.parametrize(
    "kind", ["list", "tuple", "numpy int32", "numpy int64", "array", "strided"]
)
def test_rows_may_be_lists_or_buffers(pool: PagePool, kind: str) -> None:
    convert = {
        "list": list,
        "tuple": tuple,
        "numpy int32": lambda values: np.array(values, np.int32),
        "numpy int64": lambda values: np.array(values, np.int64),
        "array": lambda values: array("i", values),
        "strided": lambda values: np.repeat(np.array(values, np.int32), 2)[::2],
    }[kind]
    staging = staging_for(8, 4)
    plan = BatchPlan(pool, 8, 4)
    layout = plan.build(convert([1, 0]), convert([1, 2]), convert([1, 3]), staging=staging)
    assert sections_of(layout, staging)["token_ids"] == [21, 12, 13, 14]


def test_staging_may_be_a_ctypes_array(pool: PagePool) -> None:
    staging = (ctypes.c_int32 * BatchPlan.staging_size(8, 4))()
    layout = BatchPlan(pool, 8, 4).build([0], [4], [1], staging=staging)
    assert staging[layout.sections["token_ids"][0]] == 14


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (([0], [4], [2]), {}, r"row 0 \(request 0\) computes tokens 4 to 5 but knows 5"),
        (([1, 0], [0, 0], [1, 0]), {}, r"row 1 \(request 0\) has start 0 and q_len 0"),
        (([0], [-1], [2]), {}, r"row 0 \(request 0\) has start -1"),
        (([0, 1, 0], [0, 0, 1], [1, 1, 1]), {}, r"row 2 \(request 0\) is in this step twice"),
        (([3], [0], [1]), {}, "3"),
        (([9], [0], [1]), {}, "9"),
        (([0, 1], [0], [1, 1]), {}, "got 2 req_indices, 1 starts and 2 q_lens"),
        (([], [], []), {}, "the step has 0 rows"),
        (([0, 1], [0, 0], [5, 2]), {}, "the step computes 7 tokens; max_total_q is 6"),
        (([0], [0], [1]), {"pad_to": 5}, "the step has 5 rows; 1 to max_batch_size 4"),
        (([0, 1], [0, 0], [1, 1]), {"pad_to": 1}, "pad_to is 1 but there are 2 rows"),
        (([0], [0], [1]), {"q_tile_rows": 0}, "q_tile_rows is 0"),
        (([0], [2**40], [1]), {}, "does not fit 32 bits"),
    ],
)
def test_a_refused_step_is_named_and_writes_nothing(
    pool: PagePool,
    rows: tuple[list[int], list[int], list[int]],
    options: dict[str, int],
    message: str,
) -> None:
    staging = staging_for(8, 4)
    with pytest.raises(ValueError, match=message):
        BatchPlan(pool, 6, 4).build(*rows, staging=staging, **options)
    assert (staging == UNTOUCHED).all()


def test_a_token_without_a_slot_is_refused(pool: PagePool) -> None:
    n_slots = pool.n_slots(1)
    for token_id in range(n_slots):
        pool.append(1, token_id)
    with pytest.raises(ValueError, match=rf"row 0 \(request 1\) needs slots for {n_slots + 1}"):
        BatchPlan(pool, 6, 4).build([1], [n_slots], [1], staging=staging_for(8, 4))


@pytest.mark.parametrize(
    "staging",
    [
        np.zeros(100, np.int64),
        np.zeros(100, np.float32),
        np.zeros((10, 10), np.int32),
        np.zeros(100, np.int32)[::2],
    ],
)
def test_staging_of_another_kind_is_a_type_error(
    pool: PagePool, staging: npt.NDArray[np.generic]
) -> None:
    with pytest.raises(TypeError, match="staging is a buffer of format"):
        BatchPlan(pool, 6, 4).build([0], [0], [1], staging=staging)


def test_read_only_and_short_staging_are_refused(pool: PagePool) -> None:
    plan = BatchPlan(pool, 6, 4)
    with pytest.raises(BufferError):
        plan.build([0], [0], [1], staging=memoryview(bytes(400)).cast("i"))
    with pytest.raises(ValueError, match=r"staging has 10\. BatchPlan.staging_size tells"):
        plan.build([0], [0], [1], staging=np.zeros(10, np.int32))


def test_a_plan_keeps_its_pool_alive() -> None:
    pool = PagePool(1, MAX_SEQ_LEN)
    pool.admit([5, 6])
    plan = BatchPlan(pool, 4, 1)
    del pool
    gc.collect()
    staging = staging_for(4, 1)
    assert sections_of(plan.build([0], [0], [2], staging=staging), staging)["token_ids"] == [5, 6]
