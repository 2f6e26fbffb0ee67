"""`_C.Allocator` against sets and a list under random operations; `_C.ReqToTokenPool`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from astrai import _C


class AllocatorMachine(RuleBasedStateMachine):
    @initialize(n_pages=st.sampled_from([1, 5, 64, 65, 130]))
    def start(self, n_pages: int) -> None:
        self.allocator = _C.Allocator(n_pages)
        self.free = set(range(n_pages))
        self.cached: list[int] = []  # oldest first
        self.ref_counts: dict[int, int] = {}
        self.evicted: list[int] = []
        self.expected_evicted: list[int] = []
        self.allocator.set_on_evict(self.evicted.append)

    pages = st.integers(0, 12)

    def take(self, n: int) -> list[int]:
        from_free = sorted(self.free)[:n]
        from_cached = self.cached[: n - len(from_free)]
        self.free -= set(from_free)
        self.cached = self.cached[len(from_cached) :]
        self.expected_evicted += from_cached
        self.ref_counts |= dict.fromkeys(from_free + from_cached, 1)
        return from_free + from_cached

    @rule()
    def alloc(self) -> None:
        expected = self.take(1) or [-1]
        assert self.allocator.alloc() == expected[0]

    @rule(n=st.integers(0, 70))
    def alloc_many(self, n: int) -> None:
        pages = self.allocator.alloc_many(n)
        if n > len(self.free) + len(self.cached):
            assert pages is None
        else:
            assert pages is not None
            assert pages.tolist() == self.take(n)

    @rule(page=pages, keep_cached=st.booleans())
    def free_page(self, page: int, keep_cached: bool) -> None:
        if page not in self.ref_counts:
            with pytest.raises(ValueError, match=r"Allocator\.free"):
                self.allocator.free(page, keep_cached)
            return
        self.allocator.free(page, keep_cached)
        self.drop(page, keep_cached)

    def drop(self, page: int, keep_cached: bool) -> None:
        self.ref_counts[page] -= 1
        if self.ref_counts[page] == 0:
            del self.ref_counts[page]
            if keep_cached:
                self.cached.append(page)
            else:
                self.free.add(page)

    @rule(pages=st.lists(pages, max_size=4))
    def free_many(self, pages: list[int]) -> None:
        if any(pages.count(page) > self.ref_counts.get(page, 0) for page in pages):
            with pytest.raises(ValueError, match="nothing was freed"):
                self.allocator.free_many(pages)
            return
        self.allocator.free_many(pages)
        for page in pages:
            self.drop(page, keep_cached=False)

    @rule(page=pages)
    def inc_ref(self, page: int) -> None:
        if page in self.free or page >= self.allocator.n_pages:
            with pytest.raises(ValueError, match=r"Allocator\.inc_ref"):
                self.allocator.inc_ref(page)
            return
        self.allocator.inc_ref(page)
        if page in self.cached:
            self.cached.remove(page)
        self.ref_counts[page] = self.ref_counts.get(page, 0) + 1

    @rule(page=pages)
    def touch(self, page: int) -> None:
        if page >= self.allocator.n_pages:
            return
        self.allocator.touch(page)
        if page in self.cached:
            self.cached.remove(page)
            self.cached.append(page)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "allocator"):
            return
        a = self.allocator
        a.check_integrity()
        assert (a.n_free, a.n_cached, a.n_held) == (
            len(self.free),
            len(self.cached),
            len(self.ref_counts),
        )
        assert self.evicted == self.expected_evicted
        for page in range(a.n_pages):
            assert a.ref_count(page) == self.ref_counts.get(page, 0)


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_pages_whose_eviction_is_not_taken_note_of_are_free() -> None:
    def refuse(page: int) -> None:
        raise LookupError(page)

    allocator = _C.Allocator(4)
    for page in [allocator.alloc() for _ in range(3)]:
        allocator.free(page, keep_cached=True)
    allocator.set_on_evict(refuse)

    with pytest.raises(LookupError, match="0"):
        allocator.alloc_many(3)

    allocator.check_integrity()
    assert (allocator.n_free, allocator.n_cached, allocator.n_held) == (3, 1, 0)


def test_rows_of_the_table_come_all_or_none_and_first_in_first_out() -> None:
    table = _C.ReqToTokenPool(3, 8)
    assert table.alloc(2) == [0, 1]
    assert table.alloc(2) is None
    table.free([1, 0])
    assert table.alloc(3) == [2, 1, 0]
    for rows in ([1, 1], [3]):
        with pytest.raises(ValueError, match="nothing was freed"):
            table.free(rows)
    assert table.n_free == 0


def test_the_table_is_seen_without_a_copy_and_outlives_its_pool() -> None:
    table = _C.ReqToTokenPool(2, 4)
    view = np.asarray(table.req_to_token)
    table.write(1, 1, [7, 8])
    assert view.dtype == np.int32
    assert view.tolist() == [[0, 0, 0, 0], [0, 7, 8, 0]]
    with pytest.raises(ValueError, match="outside the table"):
        table.write(1, 3, [7, 8])
    del table
    assert view[1, 2] == 8
