"""A prefix cache as a plain dict, the model the compiled tree is compared with.

Every recorded page is one entry keyed by its namespace and all token ids up to its end, so that
sharing, parents and namespaces need no tree at all.
"""

from __future__ import annotations

from dataclasses import dataclass

Prefix = tuple[str, tuple[int, ...]]


@dataclass
class Entry:
    page: int
    n_holders: int = 0
    last_used: int = 0


class NaiveTree:
    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.entries: dict[Prefix, Entry] = {}
        self.clock = 0

    def prefixes(self, ids: list[int], namespace: str) -> list[Prefix]:
        """The prefix that ends each whole page of ids."""
        ends = range(self.page_size, len(ids) + 1, self.page_size)
        return [(namespace, tuple(ids[:end])) for end in ends]

    def lookup(self, ids: list[int], namespace: str = "") -> list[int]:
        pages = []
        for prefix in self.prefixes(ids, namespace):
            if prefix not in self.entries:
                break
            pages.append(self.entries[prefix].page)
        return pages

    def hold(self, ids: list[int], n_pages: int, namespace: str, first: int = 0) -> None:
        """Adds a holder to pages [first, n_pages) of ids."""
        for prefix in self.prefixes(ids, namespace)[first:n_pages]:
            self.entries[prefix].n_holders += 1

    def release(self, ids: list[int], n_pages: int, namespace: str) -> None:
        self.clock += 1
        for prefix in self.prefixes(ids, namespace)[:n_pages]:
            self.entries[prefix].n_holders -= 1
            self.entries[prefix].last_used = self.clock

    def insert(self, ids: list[int], pages: list[int], namespace: str, first: int) -> int:
        """Records pages[i] as page first + i of ids with one holder; a page in place stays."""
        n_recorded = 0
        for page, prefix in zip(pages, self.prefixes(ids, namespace)[first:], strict=False):
            if prefix not in self.entries:
                self.entries[prefix] = Entry(page)
                n_recorded += 1
            self.entries[prefix].n_holders += 1
        return n_recorded

    def children(self, prefix: Prefix) -> list[Prefix]:
        n = len(prefix[1])
        return [
            (namespace, ids)
            for namespace, ids in self.entries
            if namespace == prefix[0] and len(ids) == n + self.page_size and ids[:n] == prefix[1]
        ]

    def evict_lru(self, n_pages: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < n_pages:
            leaves = [
                (entry.last_used, prefix)
                for prefix, entry in self.entries.items()
                if entry.n_holders == 0 and not self.children(prefix)
            ]
            if not leaves:
                break
            evicted.append(self.entries.pop(min(leaves)[1]).page)
        return evicted

    def subtree(self, page: int) -> list[Prefix]:
        """The prefix of a page and all prefixes that continue it."""
        top = next((prefix for prefix, entry in self.entries.items() if entry.page == page), None)
        if top is None:
            return []
        n = len(top[1])
        return [p for p in self.entries if p[0] == top[0] and p[1][:n] == top[1]]

    def n_cached(self) -> int:
        return sum(entry.n_holders == 0 for entry in self.entries.values())
