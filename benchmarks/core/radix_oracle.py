"""A prefix cache in plain Python, the baseline of bench_radix: one trie node a page, exact LRU.

Every page of a prompt is a dict key, so a lookup costs one hash of page_size ids a page. Leaves
nobody holds wait in a heap by their time of use; entries that went stale are skipped when popped.
"""

from __future__ import annotations

import heapq
from array import array
from typing import Any


class TrieNode:
    __slots__ = ("children", "key", "last_used", "n_holders", "parent")

    def __init__(self, parent: TrieNode | None, key: Any, last_used: int) -> None:
        self.children: dict[Any, TrieNode] = {}
        self.parent = parent
        self.key = key
        self.n_holders = 0
        self.last_used = last_used


class OracleKey:
    __slots__ = ("held", "pages")

    def __init__(self, pages: list[Any]) -> None:
        self.pages = pages
        self.held: TrieNode | None = None


class OracleCache:
    def __init__(self, page_size: int, capacity_tokens: int) -> None:
        self.page_size = page_size
        self.n_free = capacity_tokens
        self.root = TrieNode(None, None, 0)
        self.clock = 0
        self.n_offers = 0
        self.leaves: list[tuple[int, int, TrieNode]] = []

    def key(self, ids: array[int]) -> OracleKey:
        size = self.page_size
        if size == 1:
            return OracleKey(list(ids))
        n_whole = len(ids) // size * size
        return OracleKey([tuple(ids[i : i + size]) for i in range(0, n_whole, size)])

    def walk(self, pages: list[Any]) -> tuple[TrieNode, int]:
        self.clock += 1
        node, depth = self.root, 0
        for page in pages:
            child = node.children.get(page)
            if child is None:
                break
            node = child
            node.last_used = self.clock
            depth += 1
        return node, depth

    def offer(self, node: TrieNode) -> None:
        """Puts a node up for eviction if it is a leaf that nobody holds."""
        if node is self.root or node.children or node.n_holders:
            return
        self.n_offers += 1
        heapq.heappush(self.leaves, (node.last_used, self.n_offers, node))

    def match(self, key: OracleKey) -> int:
        node, depth = self.walk(key.pages)
        node.n_holders += 1
        key.held = node
        return depth * self.page_size

    def release(self, key: OracleKey) -> None:
        assert key.held is not None
        key.held.n_holders -= 1
        self.offer(key.held)
        key.held = None

    def alloc(self, key: OracleKey, matched: int) -> None:
        """The oracle counts tokens and hands out no slots."""
        self.n_free -= len(key.pages) * self.page_size - matched

    def insert(self, key: OracleKey, matched: int, slots: None) -> None:
        node, depth = self.walk(key.pages)
        for page in key.pages[depth:]:
            child = node.children[page] = TrieNode(node, page, self.clock)
            node = child
        self.release(key)
        self.offer(node)

    def evict(self, n_tokens: int) -> int:
        n_evicted = 0
        while n_evicted < n_tokens and self.leaves:
            last_used, _, node = heapq.heappop(self.leaves)
            parent = node.parent
            if node.children or node.n_holders or node.last_used != last_used or parent is None:
                continue
            if parent.children.get(node.key) is not node:
                continue
            del parent.children[node.key]
            n_evicted += self.page_size
            self.n_free += self.page_size
            self.offer(parent)
        return n_evicted

    def free(self) -> int:
        return self.n_free
