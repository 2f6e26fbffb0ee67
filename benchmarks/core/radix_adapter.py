"""AstrAI's prefix tree and page allocator behind the interface of bench_radix."""

from __future__ import annotations

from array import array

from astrai._C import Allocator, Int32Array, RadixCache, RadixHold


class Key:
    """Token ids converted once, and the prefix held for them between match and release."""

    __slots__ = ("hold", "ids", "n_pages")

    def __init__(self, ids: array[int], page_size: int) -> None:
        self.ids = Int32Array(ids)
        self.n_pages = len(ids) // page_size
        self.hold: RadixHold | None = None


class AstraiCache:
    """`_C.RadixCache` over the pages of one `_C.Allocator`."""

    def __init__(self, page_size: int, capacity_tokens: int) -> None:
        self.page_size = page_size
        self.allocator = Allocator(capacity_tokens // page_size)
        self.tree = RadixCache(page_size)

    def key(self, ids: array[int]) -> Key:
        return Key(ids, self.page_size)

    def match(self, key: Key) -> int:
        key.hold = hold = self.tree.match(key.ids)
        return hold.n_tokens

    def release(self, key: Key) -> None:
        assert key.hold is not None
        self.tree.release(key.hold)
        key.hold = None

    def alloc(self, key: Key, matched: int) -> Int32Array:
        """A page index for each whole page that is not cached; slot = page * page_size + i."""
        n_pages = key.n_pages - matched // self.page_size
        pages = self.allocator.alloc_many(n_pages)
        if pages is None:
            raise MemoryError(f"{n_pages} pages wanted, {self.allocator.n_free} free")
        return pages

    def insert(self, key: Key, matched: int, slots: Int32Array) -> None:
        assert key.hold is not None
        self.tree.insert(key.hold, key.ids, slots)
        self.release(key)

    def evict(self, n_tokens: int) -> int:
        pages = self.tree.evict_lru(-(-n_tokens // self.page_size))
        self.allocator.free_many(pages)
        return len(pages) * self.page_size

    def free(self) -> int:
        return self.allocator.n_free * self.page_size

    def state_bytes(self) -> int:
        return self.tree.state_bytes() + self.allocator.state_bytes()
