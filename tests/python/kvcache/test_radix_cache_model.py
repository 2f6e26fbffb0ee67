"""`_C.RadixCache` against a plain dict under random operations, with and without collisions."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from naive_tree import NaiveTree

from astrai import _C

# Few distinct ids and short prompts, so that prefixes meet.
prompts = st.lists(st.integers(0, 2), max_size=40)
namespaces = st.sampled_from(["", "tenant a", "tenant b"])


@dataclass
class Held:
    hold: _C.RadixHold
    ids: list[int]
    namespace: str


class RadixCacheMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4, 16]), hash_bits=st.sampled_from([0, 1, 64]))
    def start(self, page_size: int, hash_bits: int) -> None:
        self.page_size = page_size
        self.tree = _C.RadixCache(page_size, hash_bits=hash_bits)
        self.model = NaiveTree(page_size)
        self.held: list[Held] = []
        self.n_pages_made = 0

    def new_pages(self, n: int) -> list[int]:
        self.n_pages_made += n
        return list(range(self.n_pages_made - n, self.n_pages_made))

    @rule(ids=prompts, namespace=namespaces)
    def lookup(self, ids: list[int], namespace: str) -> None:
        assert self.tree.lookup(ids, namespace) == self.model.lookup(ids, namespace)

    @rule(ids=prompts, namespace=namespaces)
    def match(self, ids: list[int], namespace: str) -> None:
        expected = self.model.lookup(ids, namespace)
        hold = self.tree.match(array("i", ids), namespace)
        assert (hold.n_pages, hold.n_tokens) == (len(expected), len(expected) * self.page_size)
        self.model.hold(ids, hold.n_pages, namespace)
        self.held.append(Held(hold, ids, namespace))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        first = held.hold.n_pages
        n_pages = data.draw(st.integers(0, len(held.ids) // self.page_size - first))
        pages = self.new_pages(n_pages)
        n_recorded = self.tree.insert(held.hold, held.ids, pages)
        assert n_recorded == self.model.insert(held.ids, pages, held.namespace, first)
        assert held.hold.n_pages == first + n_pages

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.model.release(held.ids, held.hold.n_pages, held.namespace)
        self.tree.release(held.hold)

    @rule(ids=prompts, logical=st.integers(0, 10), namespace=namespaces)
    def record(self, ids: list[int], logical: int, namespace: str) -> None:
        prefixes = self.model.prefixes(ids, namespace)
        can_record = (
            logical < len(prefixes)
            and prefixes[logical] not in self.model.entries
            and len(self.model.lookup(ids, namespace)) == logical
        )
        page = self.new_pages(1)[0]
        assert self.tree.record(page, ids, logical, namespace) is can_record
        assert self.tree.has_page(page) is can_record
        if can_record:
            self.model.hold(ids, logical, namespace)
            self.model.insert(ids, [page], namespace, logical)
            self.model.release(ids, logical + 1, namespace)

    @rule(n_pages=st.integers(0, 6))
    def evict_lru(self, n_pages: int) -> None:
        evicted = self.tree.evict_lru(n_pages).tolist()
        assert sorted(evicted) == sorted(self.model.evict_lru(n_pages))
        assert not any(self.tree.has_page(page) for page in evicted)

    @precondition(lambda self: self.n_pages_made)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        page = data.draw(st.integers(0, self.n_pages_made - 1))
        gone = self.model.subtree(page)
        if any(self.model.entries[prefix].n_holders for prefix in gone):
            with pytest.raises(RuntimeError, match="ref_count"):
                self.tree.evict(page)
            return
        pages = [self.model.entries.pop(prefix).page for prefix in gone]
        assert sorted(self.tree.evict(page)) == sorted(pages)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check_integrity()
        assert self.tree.n_pages == len(self.model.entries)
        assert self.tree.n_cached == self.model.n_cached()
        for entry in self.model.entries.values():
            assert self.tree.ref_count(entry.page) == entry.n_holders

    def teardown(self) -> None:
        for (namespace, ids), entry in self.model.entries.items() if hasattr(self, "model") else ():
            assert self.tree.lookup(list(ids), namespace)[-1] == entry.page


TestRadixCacheMachine = RadixCacheMachine.TestCase
TestRadixCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("hash_bits", [0, 64])
def test_equal_pages_under_different_parents_are_different(hash_bits: int) -> None:
    tree = _C.RadixCache(2, hash_bits=hash_bits)
    for page, (ids, logical) in enumerate([([1, 1], 0), ([2, 2], 0), ([1, 1, 9, 9], 1)]):
        assert tree.record(page, ids, logical)
    assert tree.lookup([1, 1, 9, 9]) == [0, 2]
    assert tree.lookup([2, 2, 9, 9]) == [1]


def test_hash_of_is_the_page_hash_chained_from_the_root() -> None:
    tree = _C.RadixCache(3)
    ids = [5, 6, 7, 8, 9, 10]
    tree.record(4, ids, 0)
    tree.record(2, ids, 1)
    first = _C.page_hash(ids, 0, 3)
    assert tree.hash_of(4) == first == (5 * 31 + 6) * 31 + 7
    assert tree.hash_of(2) == _C.page_hash(ids, 1, 3, parent=first)
    assert [(v["page"], v["parent"], v["hash"]) for v in tree.snapshot()] == [
        (4, -1, first),
        (2, 4, tree.hash_of(2)),
    ]


def test_edges_spell_every_recorded_prompt_once() -> None:
    tree = _C.RadixCache(2)
    for pages, ids, namespace in (
        ([0, 1, 2], [1, 2, 3, 4, 5, 6], ""),
        ([3], [1, 2, 3, 4, 7, 8], ""),
        ([4], [1, 2], "tenant a"),
    ):
        n_known = len(ids) // 2 - len(pages)
        for i, page in enumerate(pages):
            assert tree.record(page, ids, n_known + i, namespace)
    hold = tree.match([1, 2, 3, 4, 7, 8])
    edges = {edge["node"]: edge for edge in tree.edges()}
    assert len(edges) == tree.n_edges == 4

    def spelled(node: int) -> list[int]:
        return [] if node < 0 else spelled(edges[node]["parent"]) + edges[node]["token_ids"]

    leaves = edges.keys() - {edge["parent"] for edge in edges.values()}
    assert sorted((edges[leaf]["namespace"], spelled(leaf)) for leaf in leaves) == [
        ("", [1, 2, 3, 4, 5, 6]),
        ("", [1, 2, 3, 4, 7, 8]),
        ("tenant a", [1, 2]),
    ]
    held = {tuple(edge["token_ids"]) for edge in edges.values() if edge["ref_count"]}
    assert held == {(1, 2, 3, 4), (7, 8)}
    tree.release(hold)


def test_edges_are_cut_at_both_limits_and_keep_parents_first() -> None:
    tree = _C.RadixCache(2)
    tree.record(0, [1, 2, 3, 4], 0)
    tree.record(1, [1, 2, 3, 4], 1)
    tree.record(2, [1, 2, 5, 6], 1)
    (edge,) = tree.edges(max_edges=1, max_ids=1)
    assert (edge["parent"], edge["token_ids"], edge["n_tokens"]) == (-1, [1], 2)
    assert tree.edges(max_ids=0)[1]["parent"] == edge["node"]
    assert tree.edges(max_edges=0) == []


@pytest.mark.parametrize(
    ("ids", "namespace", "reason", "position"),
    [
        ([1, 2, 3, 4, 5], "", "end_of_prompt", 4),
        ([1, 2, 3, 9, 5, 6], "", "token_differs", 3),
        ([7, 2, 3, 4], "", "token_differs", 0),
        ([1, 2, 3, 4, 5, 6, 7], "", "page_boundary", 4),
        ([1, 2, 3, 4], "other", "other_namespace", 0),
        ([8, 8], "other", "empty_cache", 0),
    ],
)
def test_a_match_tells_why_it_ended(
    ids: list[int], namespace: str, reason: str, position: int
) -> None:
    tree = _C.RadixCache(2)
    tree.record(0, [1, 2, 3, 4], 0)
    tree.record(1, [1, 2, 3, 4], 1)
    hold = tree.match(ids, namespace)
    assert (hold.miss_reason, hold.miss_position) == (reason, position)
    tree.release(hold)


def test_a_match_ends_with_evicted_where_eviction_cut_it_off() -> None:
    tree = _C.RadixCache(2)
    ids = [1, 2, 3, 4, 5, 6]
    for logical in range(3):
        tree.record(logical, ids, logical)
    assert tree.evict_lru(2).tolist() == [1, 2]
    hold = tree.match(ids)
    assert (hold.n_tokens, hold.miss_reason, hold.miss_position) == (2, "evicted", 2)


def test_an_unheld_empty_namespace_leaves_nothing_behind() -> None:
    tree = _C.RadixCache(2)
    for i in range(100):
        tree.release(tree.match([1, 2], f"tenant {i}"))
    assert tree.n_namespaces == 0


def test_a_page_recorded_elsewhere_is_refused() -> None:
    tree = _C.RadixCache(2)
    tree.record(0, [1, 2], 0)
    with pytest.raises(ValueError, match="page 0 is listed twice or recorded"):
        tree.record(0, [3, 4], 0)
    hold = tree.match([5, 6, 7, 8])
    with pytest.raises(ValueError, match="page 3 is listed twice or recorded"):
        tree.insert(hold, [5, 6, 7, 8], [3, 3])
    tree.release(hold)
    with pytest.raises(ValueError, match="was released"):
        tree.release(hold)
    tree.check_integrity()


def test_a_hold_of_another_tree_is_refused() -> None:
    tree, other = _C.RadixCache(2), _C.RadixCache(2)
    hold = tree.match([1, 2, 3, 4])
    with pytest.raises(ValueError, match="release: the hold is of another RadixCache"):
        other.release(hold)
    with pytest.raises(ValueError, match="insert: the hold is of another RadixCache"):
        other.insert(hold, [1, 2, 3, 4], [0, 1])
    tree.release(hold)


def test_a_hold_keeps_its_tree_alive() -> None:
    hold = _C.RadixCache(2).match([1, 2])
    trees = [_C.RadixCache(2) for _ in range(100)]  # one would lie where a tree that is gone lay
    for tree in trees:
        with pytest.raises(ValueError, match="of another RadixCache"):
            tree.release(hold)


def test_ids_may_be_a_list_or_any_integer_buffer() -> None:
    numpy = pytest.importorskip("numpy")
    tree = _C.RadixCache(2)
    tree.record(0, [1, 2], 0)
    strided = numpy.array([1, 0, 2, 0, 3, 0], dtype=numpy.int64)[::2]
    for ids in (
        [1, 2, 3],
        array("i", [1, 2, 3]),
        array("q", [1, 2, 3]),
        _C.Int32Array([1, 2]),
        strided,
    ):
        assert tree.lookup(ids) == [0]
    with pytest.raises(ValueError, match="does not fit"):
        tree.lookup(array("q", [1, 2**40]))
    for wrong in ([1.5, 2.0], array("d", [1.0, 2.0]), "12", 7):
        with pytest.raises(TypeError):
            tree.lookup(wrong)  # type: ignore[arg-type]


def test_a_list_that_changes_while_it_is_read_is_refused() -> None:
    class Clearing:
        def __index__(self) -> int:
            ids.clear()
            return 1

    ids: list[Any] = [Clearing(), *range(100_000)]
    with pytest.raises(ValueError, match="changed while it was read"):
        _C.RadixCache(2).lookup(ids)
