"""`_C.PagePool` against plain Python under random requests: lists for rows, a dict for the tree,
and a fake KV that remembers which prefix was written to which slot."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_tree import NaiveTree

from astrai import _C

namespaces = st.sampled_from(["", "tenant"])
MAX_BATCH_SIZE = 4
MAX_SEQ_LEN = 37  # no multiple of any page size


@dataclass
class Row:
    tokens: list[int]
    namespace: str
    n_written: int  # tokens whose KV is in the row's slots
    n_recorded: int  # pages the tree knows
    private: list[int] = field(default_factory=list)


class PagePoolMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([None, 1, 2, 4, 4, 16]), n_tokens=st.integers(16, 100))
    def start(self, page_size: int | None, n_tokens: int) -> None:
        self.is_contiguous = page_size is None
        self.page_size = page_size or 1
        if page_size is None:
            self.pool = _C.PagePool(MAX_BATCH_SIZE, MAX_SEQ_LEN)
            self.n_pages = MAX_BATCH_SIZE * MAX_SEQ_LEN
        else:
            self.pool = _C.PagePool(MAX_BATCH_SIZE, MAX_SEQ_LEN, page_size, n_tokens)
            self.n_pages = n_tokens // page_size
        self.has_tree = self.page_size > 1
        self.tree = NaiveTree(self.page_size)
        self.rows: dict[int, Row] = {}
        self.kv: dict[int, tuple[str, tuple[int, ...]]] = {}  # slot -> prefix it holds the KV of
        self.device_table = np.array(self.pool.table)
        self.prompts: list[tuple[list[int], str]] = []  # of released rows

    def n_free(self) -> int:
        return (
            self.n_pages - sum(len(r.private) for r in self.rows.values()) - len(self.tree.entries)
        )

    def pages_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size)

    def take(self, n_pages: int, pages: list[int]) -> None:
        """Checks that the pool took `pages`, which were free, after evicting what was lacking."""
        self.tree.evict_lru(max(0, n_pages - self.n_free()))
        taken = {page for row in self.rows.values() for page in row.private}
        taken |= {entry.page for entry in self.tree.entries.values()}
        assert len(pages) == len(set(pages)) == n_pages
        assert not taken & set(pages)

    @rule(data=st.data(), namespace=namespaces, n_new=st.integers(0, 40))
    def admit_new(self, data: st.DataObject, namespace: str, n_new: int) -> None:
        start = data.draw(st.lists(st.integers(0, 1), max_size=3))
        self.admit([*start, *([0] * n_new)][:n_new], namespace)

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), n_pages=st.integers(1, 9), n_more=st.integers(0, 2))
    def admit_again(self, data: st.DataObject, n_pages: int, n_more: int) -> None:
        """An earlier request's ids, cut at or just behind the end of a page."""
        ids, namespace = data.draw(st.sampled_from(self.prompts))
        self.admit([*ids[: n_pages * self.page_size], *([1] * n_more)], namespace)

    def admit(self, ids: list[int], namespace: str) -> None:
        n_tokens = len(ids)
        fits = 1 <= n_tokens < MAX_SEQ_LEN and (
            self.is_contiguous or self.pages_for(n_tokens) <= self.n_pages
        )
        assert self.pool.fits(n_tokens) is fits
        argument = array("q", ids) if n_tokens % 2 else ids
        if not fits:
            assert not self.pool.can_admit(n_tokens)
            with pytest.raises(ValueError, match=r"PagePool\.admit"):
                self.pool.admit(argument, namespace)
            return
        hit = self.tree.lookup(ids[:-1], namespace) if self.has_tree else []
        n_new = 0 if self.is_contiguous else self.pages_for(n_tokens) - len(hit)
        entries = [self.tree.entries[p] for p in self.tree.prefixes(ids, namespace)[: len(hit)]]
        n_evictable = self.tree.n_cached() - sum(entry.n_holders == 0 for entry in entries)
        has_row = len(self.rows) < MAX_BATCH_SIZE
        has_room = has_row and (self.is_contiguous or n_new <= self.n_free() + n_evictable)
        can_admit = has_row and (
            self.is_contiguous or self.pages_for(n_tokens) <= self.n_free() + self.tree.n_cached()
        )
        assert self.pool.can_admit(n_tokens) is can_admit
        admission = self.pool.admit(argument, namespace)
        assert (admission is not None) is has_room
        if admission is None:
            return
        assert admission.req_idx not in self.rows
        assert admission.n_cached == len(hit) * self.page_size
        assert (admission.miss_reason == "disabled") is not self.has_tree
        self.tree.hold(ids, len(hit), namespace)
        pages = self.pool.pages(admission.req_idx)
        assert pages[: len(hit)] == hit
        self.take(n_new, pages[len(hit) :])
        for position in range(admission.n_cached):
            slot = self.pool.table[admission.req_idx, position]
            assert self.kv[slot] == (namespace, tuple(ids[: position + 1]))
        self.rows[admission.req_idx] = Row(
            ids, namespace, admission.n_cached, len(hit), pages[len(hit) :]
        )

    def draw_row(self, data: st.DataObject) -> tuple[int, Row]:
        req_idx = data.draw(st.sampled_from(sorted(self.rows)))
        return req_idx, self.rows[req_idx]

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), new_len=st.integers(0, 40))
    def extend(self, data: st.DataObject, new_len: int) -> None:
        req_idx, row = self.draw_row(data)
        before = self.pool.pages(req_idx)
        n_new = 0 if self.is_contiguous else max(0, self.pages_for(new_len) - len(before))
        has_room = new_len <= MAX_SEQ_LEN and n_new <= self.n_free() + self.tree.n_cached()
        if self.is_contiguous:
            has_room = new_len <= MAX_SEQ_LEN
        assert self.pool.extend(req_idx, new_len) is has_room
        pages = self.pool.pages(req_idx)
        assert pages[: len(before)] == before
        if has_room:
            self.take(n_new, pages[len(before) :])
            row.private += pages[len(before) :]
            assert self.pool.n_slots(req_idx) >= new_len
        else:
            assert pages == before

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), token_id=st.integers(0, 1))
    def append(self, data: st.DataObject, token_id: int) -> None:
        req_idx, row = self.draw_row(data)
        refusal = "pending" if -1 in row.tokens else "max_seq_len"
        if len(row.tokens) > MAX_SEQ_LEN or refusal == "pending":
            with pytest.raises(ValueError, match=refusal):
                self.pool.append(req_idx, token_id)
            return
        self.pool.append(req_idx, token_id)
        row.tokens.append(token_id)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def append_pending(self, data: st.DataObject) -> None:
        req_idx, row = self.draw_row(data)
        if len(row.tokens) > MAX_SEQ_LEN:
            with pytest.raises(ValueError, match="max_seq_len"):
                self.pool.append_pending([req_idx])
            return
        self.pool.append_pending([req_idx])
        row.tokens.append(-1)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), token_id=st.integers(0, 1))
    def settle(self, data: st.DataObject, token_id: int) -> None:
        req_idx, row = self.draw_row(data)
        if -1 not in row.tokens:
            with pytest.raises(ValueError, match="no pending token"):
                self.pool.settle([req_idx], [token_id])
            return
        self.pool.settle([req_idx], [token_id])
        row.tokens[row.tokens.index(-1)] = token_id

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def forward_and_commit(self, data: st.DataObject) -> None:
        """Writes some of the known tokens that have slots, then commits, once or twice."""
        req_idx, row = self.draw_row(data)
        n_known = len(row.tokens) - row.tokens.count(-1)
        n_writable = min(n_known, self.pool.n_slots(req_idx))
        n_written = n_writable
        if data.draw(st.booleans()):
            n_written = data.draw(st.integers(row.n_written, n_writable))
        shared = {entry.page for entry in self.tree.entries.values()}
        for position in range(row.n_written, n_written):
            slot = int(self.device_table[req_idx, position])
            assert slot // self.page_size not in shared, "a shared page is rewritten"
            self.kv[slot] = (row.namespace, tuple(row.tokens[: position + 1]))
        row.n_written = n_written
        n_whole = n_written // self.page_size if self.has_tree else 0
        pages = self.pool.pages(req_idx)[row.n_recorded : n_whole]
        known = {entry.page for entry in self.tree.entries.values()}
        n_new = self.tree.insert(row.tokens, pages, row.namespace, row.n_recorded)
        row.n_recorded = max(row.n_recorded, n_whole)
        recorded = {entry.page for entry in self.tree.entries.values()} - known
        row.private = [page for page in row.private if page not in recorded]
        assert self.pool.commit(req_idx, n_written) == n_new
        assert self.pool.commit(req_idx, n_written) == 0

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def commit_of_more_than_is_known_is_refused(self, data: st.DataObject) -> None:
        req_idx, row = self.draw_row(data)
        with pytest.raises(ValueError, match=r"PagePool\.commit"):
            self.pool.commit(req_idx, len(row.tokens) - row.tokens.count(-1) + 1)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        req_idx, row = self.draw_row(data)
        self.pool.release(req_idx)
        del self.rows[req_idx]
        self.prompts.append(([i for i in row.tokens if i >= 0], row.namespace))
        self.tree.release(row.tokens, row.n_recorded, row.namespace)
        with pytest.raises(ValueError, match="not in use"):
            self.pool.release(req_idx)

    @precondition(lambda self: len(self.prompts) % 8 == 7)
    @rule()
    def flush_cache(self) -> None:
        n_cached = self.tree.n_cached()
        assert self.pool.flush_cache() == n_cached
        self.tree.evict_lru(n_cached)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        for span in self.pool.take_dirty():
            written = np.s_[span.req_idx, span.begin : span.end]
            self.device_table[written] = np.asarray(self.pool.table)[written]
        counts = (self.pool.n_free_pages, self.pool.n_cached_pages, self.pool.n_held_pages)
        assert sum(counts) == self.pool.n_pages == self.n_pages
        assert self.pool.n_free_rows == MAX_BATCH_SIZE - len(self.rows)
        for req_idx, row in self.rows.items():
            assert self.pool.tokens(req_idx) == row.tokens
            n_slots = self.pool.n_slots(req_idx)
            slots = np.asarray(self.pool.table)[req_idx, :n_slots]
            assert (self.device_table[req_idx, :n_slots] == slots).all()
            assert self.pool.reserved_slot not in slots
            if self.is_contiguous:
                assert slots.tolist() == list(
                    range(req_idx * MAX_SEQ_LEN, (req_idx + 1) * MAX_SEQ_LEN)
                )
        if self.is_contiguous:
            return
        assert counts[:2] == (self.n_free(), self.tree.n_cached())
        for entry in self.tree.entries.values():
            assert self.pool.ref_count(entry.page) == entry.n_holders
        for row in self.rows.values():
            assert all(self.pool.ref_count(page) == 1 for page in row.private)


TestPagePoolMachine = PagePoolMachine.TestCase
TestPagePoolMachine.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
