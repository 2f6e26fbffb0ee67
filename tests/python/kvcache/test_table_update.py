"""write_table_update against a naive model: over random transactions, an update is the positions
and then the slots of the dirty spans, and a table that takes every update equals the pool's."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai import _C

MAX_BATCH_SIZE, MAX_SEQ_LEN = 4, 24


def naive_update(pool: _C.PagePool, spans: _C.DirtySpans) -> list[int]:
    table = np.asarray(pool.table)
    entries = [(span.req_idx, i) for span in spans for i in range(span.begin, span.end)]
    positions = [row * MAX_SEQ_LEN + column for row, column in entries]
    return positions + [int(table[entry]) for entry in entries]


@given(data=st.data())
def test_updates_keep_a_copy_of_the_table_equal_to_the_pools(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 2, 4]))
    pool = _C.PagePool(MAX_BATCH_SIZE, MAX_SEQ_LEN, page_size, 2 * MAX_SEQ_LEN)
    copy = np.asarray(pool.table).copy()
    lengths: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 4))):
            draw_transaction(data, pool, lengths)

        spans = pool.take_dirty()
        update = np.full(2 * _C.n_dirty_entries(spans), -7, np.int32)
        _C.write_table_update(pool, spans, update)

        assert update.tolist() == naive_update(pool, spans)
        positions, slots = update.reshape(2, -1)
        copy.reshape(-1)[positions] = slots
        for req_idx in lengths:
            n_slots = pool.n_slots(req_idx)
            assert (copy[req_idx, :n_slots] == np.asarray(pool.table)[req_idx, :n_slots]).all()


def draw_transaction(data: st.DataObject, pool: _C.PagePool, lengths: dict[int, int]) -> None:
    action = data.draw(st.sampled_from(["admit", "extend", "release"]))
    if action == "admit" or not lengths:
        n_tokens = data.draw(st.integers(1, MAX_SEQ_LEN - 1))
        ids = [data.draw(st.integers(1, 2))] * n_tokens
        admission = pool.admit(ids)
        if admission is not None:
            lengths[admission.req_idx] = n_tokens
        return
    req_idx = data.draw(st.sampled_from(sorted(lengths)))
    if action == "extend":
        new_len = data.draw(st.integers(lengths[req_idx], MAX_SEQ_LEN))
        if pool.extend(req_idx, new_len):
            lengths[req_idx] = new_len
    else:
        del lengths[req_idx]
        pool.commit(req_idx, pool.n_tokens_of(req_idx))
        pool.release(req_idx)


def test_a_span_says_which_entries_of_which_row() -> None:
    pool = _C.PagePool(2, MAX_SEQ_LEN, 4, 2 * MAX_SEQ_LEN)
    first, second = pool.admit([1] * 5), pool.admit([2] * 3)
    assert first is not None and second is not None

    spans = pool.take_dirty()

    assert len(spans) == 2
    assert [(span.req_idx, span.begin, span.end) for span in spans] == [
        (first.req_idx, 0, 8),
        (second.req_idx, 0, 4),
    ]
    assert len(pool.take_dirty()) == 0


def test_spans_of_a_larger_pool_are_refused() -> None:
    large = _C.PagePool(1, 2 * MAX_SEQ_LEN, 4, 4 * MAX_SEQ_LEN)
    assert large.admit([1] * 40) is not None
    small = _C.PagePool(1, MAX_SEQ_LEN, 4, 4 * MAX_SEQ_LEN)

    with pytest.raises(ValueError, match=r"span \[0, 40\) of row 0 lies outside the table"):
        _C.write_table_update(small, large.take_dirty(), np.empty(80, np.int32))


@pytest.mark.parametrize("n_words", [0, 7, 9, 16])
def test_an_update_takes_exactly_its_size(n_words: int) -> None:
    pool = _C.PagePool(1, MAX_SEQ_LEN, 4, MAX_SEQ_LEN)
    assert pool.admit([1, 2, 3]) is not None

    with pytest.raises(ValueError, match=f"out has {n_words} elements; these spans need 8"):
        _C.write_table_update(pool, pool.take_dirty(), (ctypes.c_int32 * n_words)())


def test_an_update_is_int32() -> None:
    pool = _C.PagePool(1, MAX_SEQ_LEN, 4, MAX_SEQ_LEN)

    with pytest.raises(TypeError, match="out is a buffer of format 'l'"):
        _C.write_table_update(pool, pool.take_dirty(), np.empty(0, np.int64))
