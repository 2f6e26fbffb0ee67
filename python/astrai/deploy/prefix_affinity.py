"""Which of several engines should take a request: the one that has most of its prompt's pages.

A prompt is known by its page keys: one hash for each whole leading page, chained over the pages
before it, so two prompts share a key exactly where their engines share a page. `PrefixAffinity`
remembers which engine was given which page. A prompt that nobody was given goes where its leading
pages hash to, which every router of the same engines works out alike. An engine that is too far
ahead of the least loaded one is passed over, whatever it holds.

No clock, thread or network. Single-threaded.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from astrai import _C

__all__ = ["PrefixAffinity", "page_keys"]

_MAX_PAGES = 1024  # of a prompt; a router looks at no more of them
_MAX_KEYS = 131_072  # 2 million tokens at 16 a page
_MAX_HOLDERS = 8  # engines remembered for one page
# Pages that place a prompt nobody has seen: enough to tell one long instruction from another, few
# enough that prompts with the same instruction meet.
_LEADING_PAGES = 16
# A page that many prompts begin with, such as the start of a chat template, says little.
_MIN_SHARE = 0.25


def page_keys(token_ids: Sequence[int], page_size: int) -> list[int]:
    """Keys of the whole pages that a prefix cache could serve of this prompt, first page first.

    The last token is always computed, so a page that ends with it has no key. O(tokens).
    """
    ids = array("i", token_ids)
    n_pages = min((len(ids) - 1) // page_size, _MAX_PAGES)
    keys: list[int] = []
    key = 0
    for page_idx in range(n_pages):
        key = _C.page_hash(ids, page_idx, page_size, key)
        keys.append(key)
    return keys


class PrefixAffinity:
    """Ranks engines for prompts and remembers where they went.

    max_lead: open requests by which an engine may be ahead of the least loaded one and still be
    chosen for its pages. max_keys: pages remembered; those used longest ago are forgotten.
    """

    def __init__(self, max_lead: int, max_keys: int = _MAX_KEYS) -> None:
        if max_lead < 1:
            raise ValueError(f"max_lead is {max_lead}; it should be at least 1")
        self._max_lead = max_lead
        self._max_keys = max_keys
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def rank(self, keys: Sequence[int], loads: Mapping[str, int]) -> list[str]:
        """The engines of `loads` in the order in which to try them. Changes nothing.

        loads: open requests of each engine. First come engines within max_lead of the least loaded
        one: by pages of the prompt that they hold, of equal ones the less loaded; if nobody holds
        any, by hash. The others follow by load. Equal input gives equal output. O(pages + engines
        log engines).
        """
        if not loads:
            return []
        limit = min(loads.values()) + self._max_lead
        near = [name for name, load in loads.items() if load < limit]
        far = [name for name, load in loads.items() if load >= limit]
        places = _hash_places(keys, loads)
        depths = self._depths(keys, near)
        if depths:
            near.sort(key=lambda name: (-depths.get(name, 0), loads[name], places[name]))
        elif keys:
            near.sort(key=lambda name: places[name])
        else:
            near.sort(key=lambda name: (loads[name], places[name]))
        far.sort(key=lambda name: (loads[name], places[name]))
        return near + far

    def record(self, keys: Sequence[int], name: str) -> None:
        """The engine was given a prompt with these keys. O(pages)."""
        holders = self._holders
        for key in reversed(keys):  # the first page is used last: forgotten after those behind it
            others = (other for other in holders.get(key, ()) if other != name)
            holders[key] = (name, *others)[:_MAX_HOLDERS]
            holders.move_to_end(key)
        while len(holders) > self._max_keys:
            holders.popitem(last=False)

    def _depths(self, keys: Sequence[int], names: Iterable[str]) -> dict[str, int]:
        """Pages of the prompt that each engine was given, of those that have a telling share."""
        sought = set(names)
        depths: dict[str, int] = {}
        for depth in range(len(keys), 0, -1):
            if not sought or depth < _MIN_SHARE * len(keys):
                break
            for name in self._holders.get(keys[depth - 1], ()):
                if name in sought:
                    sought.discard(name)
                    depths[name] = depth
        return depths


def _hash_places(keys: Sequence[int], names: Iterable[str]) -> dict[str, bytes]:
    """Rendezvous hashing (Thaler and Ravishankar, 1998): the engine whose place is lowest is the
    prompt's own. One that comes takes its share from all, one that goes leaves its share to all."""
    leading = keys[min(len(keys), _LEADING_PAGES) - 1] if keys else 0
    salt = leading.to_bytes(8, "little")
    return {name: blake2b(name.encode(), digest_size=8, salt=salt).digest() for name in names}
