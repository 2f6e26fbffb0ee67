"""BatchPlan against a naive numpy model, over random pools, chunked prefill and padding."""

from __future__ import annotations

import ctypes
import gc
from array import array
from collections import Counter
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
    pool: PagePool, step: Step, n_decode: int, q_tile_rows: int, split_len: int, n_padding: int
) -> dict[str, list[int]]:
    """All sections but those of the units. Padding rows decode when all of the step's rows do."""
    table = table_of(pool)
    ids, positions, slots, tiles = [], [], [], []
    seq_lens = [start + q_len for start, q_len in zip(step.starts, step.q_lens, strict=True)]
    for req_idx, start, seq_len in zip(step.req_indices, step.starts, seq_lens, strict=True):
        ids += pool.tokens(req_idx)[start:seq_len]
        positions += range(start, seq_len)
        slots += table[req_idx, start:seq_len].tolist()
    q_lens = step.q_lens + [1] * n_padding
    seq_lens += [1] * n_padding
    if n_decode == len(step.q_lens):
        n_decode += n_padding
    for row, q_len in enumerate(q_lens[n_decode:], n_decode):
        tiles += [(row, tile) for tile in range(-(-q_len // q_tile_rows))]
    n_cached = [seq_len - q_len for seq_len, q_len in zip(seq_lens, q_lens, strict=True)]

    def n_keys(tile: tuple[int, int]) -> int:  # that the tile's last row sees
        row, index = tile
        return n_cached[row] + min((index + 1) * q_tile_rows, q_lens[row])

    tiles.sort(key=n_keys)
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
        "decode_split_indptr": prefix_sum([-(-n // split_len) for n in seq_lens[:n_decode]]),
    }


def naive_units(
    pool: PagePool, step: Step, n_decode: int, split_len: int, n_padding: int
) -> list[tuple[int, frozenset[int]]]:
    """(split, requests that have the same slots up to its end) for every split, each once."""
    table = table_of(pool)
    rows_of: dict[tuple[int, ...], set[int]] = {}
    for row in range(n_decode):
        req_idx, n_written = step.req_indices[row], step.starts[row]
        for split in range(n_written // split_len + 1):
            slots = tuple(table[req_idx, : (split + 1) * split_len].tolist())
            is_whole = (split + 1) * split_len <= n_written
            key = (split, *slots) if is_whole else (split, -1, row)
            rows_of.setdefault(key, set()).add(row)
    units = [(key[0], frozenset(rows)) for key, rows in rows_of.items()]
    if n_decode == len(step.q_lens):
        units += [(0, frozenset([n_decode + i])) for i in range(n_padding)]
    return sorted(units, key=lambda unit: (unit[0], sorted(unit[1])))


def assert_units_are_right(
    sections: dict[str, list[int]],
    naive: list[tuple[int, frozenset[int]]],
    req_indices: list[int],
    stack_len: int,
) -> None:
    """Every split of every row once, and no more stacks than the naive units need."""
    members = np.array(sections["decode_members"], np.int32).reshape(-1, 4)
    rows = members[:, 0].tolist()
    assert sorted(rows) == list(range(len(rows)))
    assert members[:, 1].tolist() == [req_indices[row] for row in rows]
    assert members[:, 2].tolist() == [sections["seq_lens"][row] for row in rows]
    assert members[:, 3].tolist() == [sections["decode_split_indptr"][row] for row in rows]
    units = np.array(sections["decode_units"], np.int32).reshape(-1, 2).tolist()
    assert sections["decode_n_units"] == [len(units), 0]
    sharers = {(split, row): rows for split, rows in naive for row in rows}
    seen: list[tuple[int, int]] = []
    n_stacks: Counter[tuple[int, frozenset[int]]] = Counter()
    for first, word in units:
        split, n = divmod(word, 256)
        stack = rows[first : first + n]
        assert 1 <= n <= stack_len
        assert set(stack) <= sharers[split, stack[0]]
        n_stacks[split, sharers[split, stack[0]]] += 1
        seen += [(split, row) for row in stack]
    assert sorted(seen) == sorted(sharers)
    assert n_stacks == {unit: -(-len(unit[1]) // stack_len) for unit in naive}


UNIT_SECTIONS = ("decode_members", "decode_n_units", "decode_units")


def sections_of(layout: Layout, staging: Int32Array) -> dict[str, list[int]]:
    return {
        name: staging[offset : offset + length].tolist()
        for name, (offset, length) in layout.sections.items()
    }


def staging_for(total_q: int, n_rows: int) -> Int32Array:
    size = BatchPlan.staging_size(total_q, n_rows, n_rows * MAX_SEQ_LEN)
    return np.full(size, UNTOUCHED, np.int32)


pools = st.builds(
    PagePool,
    st.integers(1, 6),
    st.just(MAX_SEQ_LEN),
    st.sampled_from([1, 4]),
    st.none() | st.integers(40, 6 * MAX_SEQ_LEN),
)


@st.composite
def steps(draw: st.DrawFn, pool: PagePool) -> tuple[Step, int]:
    """Admits random prompts, grows them, and cuts a random range out of some.

    Returns the rows and how many of them decode: leading ones of one token each.
    """
    step = Step()
    only_last = draw(st.booleans())
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
            start = n_known - 1 if only_last else draw(st.integers(0, n_known - 1))
            step.req_indices.append(req_idx)
            step.starts.append(start)
            step.q_lens.append(draw(st.integers(1, n_known - start)))
    n_leading = next((i for i, q_len in enumerate(step.q_lens) if q_len > 1), len(step.q_lens))
    return step, draw(st.integers(0, n_leading))


@given(data=st.data())
def test_every_section_equals_the_naive_model(data: st.DataObject) -> None:
    pool = data.draw(pools)
    step, n_decode = data.draw(steps(pool))
    n_padding = data.draw(st.integers(0 if step.req_indices else 1, 3))
    q_tile_rows = data.draw(st.sampled_from([1, 2, 3, 64]))
    split_len = data.draw(st.sampled_from([1, 2, 4, 5, 8, 512]))
    stack_len = data.draw(st.sampled_from([1, 2, 16]))
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
        n_decode=n_decode,
        stack_len=stack_len,
    )

    expected = naive_sections(pool, step, n_decode, q_tile_rows, split_len, n_padding)
    sections = sections_of(layout, staging)
    units = naive_units(pool, step, n_decode, split_len, n_padding)
    assert_units_are_right(sections, units, expected["req_pool_indices"], stack_len)
    assert layout.has_shared == any(len(rows) > 1 for _, rows in units)
    assert {name: sections[name] for name in sections if name not in UNIT_SECTIONS} == expected
    assert (layout.n_rows, layout.total_q) == (n_rows, total_q)
    assert layout.n_decode == len(expected["decode_split_indptr"]) - 1
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


@given(
    prefix_lens=st.lists(st.integers(0, 12), min_size=2, max_size=8),
    n_own=st.integers(1, 6),
    page_size=st.sampled_from([2, 3, 4, 8]),
    split_len=st.sampled_from([4, 6, 8]),
)
def test_requests_that_branch_off_a_cached_prompt_share_its_splits(
    prefix_lens: list[int], n_own: int, page_size: int, split_len: int
) -> None:
    """Request i has prefix_lens[i] tokens of a common text, then its own."""
    n = len(prefix_lens)
    pool = PagePool(n, MAX_SEQ_LEN, page_size, n * MAX_SEQ_LEN)
    step = Step()
    for i, prefix_len in enumerate(prefix_lens):
        prompt = [1] * prefix_len + [100 + i] * n_own
        admission = pool.admit(prompt)
        assert admission is not None
        pool.commit(admission.req_idx, len(prompt) - 1)
        step.req_indices.append(admission.req_idx)
        step.starts.append(len(prompt) - 1)
        step.q_lens.append(1)
    staging = staging_for(n, n)

    layout = BatchPlan(pool, n, n, split_len).build(
        step.req_indices, step.starts, step.q_lens, staging=staging, stack_len=3
    )

    units = naive_units(pool, step, n, split_len, 0)
    assert_units_are_right(sections_of(layout, staging), units, step.req_indices, 3)


def test_long_requests_start_first() -> None:
    pool = PagePool(3, MAX_SEQ_LEN)
    for n_tokens in (4, 20, 9):
        pool.admit([n_tokens] * n_tokens)
    staging = staging_for(3, 3)

    layout = BatchPlan(pool, 3, 3, 4).build([0, 1, 2], [3, 19, 8], [1, 1, 1], staging=staging)

    units = np.array(sections_of(layout, staging)["decode_units"]).reshape(-1, 2)
    assert units[:, 0].tolist() == [1] * 5 + [2] * 3 + [0]
    assert (units[:, 1] // 256).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0]


def test_a_row_that_decodes_several_tokens_is_refused(pool: PagePool) -> None:
    with pytest.raises(ValueError, match=r"row 1 \(request 0\) is among the first n_decode 2"):
        BatchPlan(pool, 8, 4).build([1, 0], [1, 0], [1, 5], staging=staging_for(8, 4), n_decode=2)


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
            for span in layout.dirty_spans:
                written = np.s_[span.req_idx, span.begin : span.end]
                copy[written] = table_of(pool)[written]
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
    staging = (ctypes.c_int32 * BatchPlan.staging_size(8, 4, 4))()
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
        (([0], [0], [1]), {"n_decode": 2}, "n_decode is 2; 0 to the 1 rows"),
        (([0], [0], [1]), {"n_decode": -1}, "n_decode is -1"),
        (([0], [0], [1]), {"stack_len": 0}, "stack_len is 0; 1 to 255"),
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
