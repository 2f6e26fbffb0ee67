"""A seeded prefix-cache workload: token sequences that share prefixes as chats do.

All ids come from splitmix64, so that any language can make the same sequences. Each sequence is a
path through a random tree of shared prefixes (8 x 12 x 24 inner nodes, edge lengths not page
aligned, low branches more often) and then ids of its own; of every hundred about ten are a later
turn of an earlier sequence (its first three quarters, then new ids) and five repeat one.
"""

from __future__ import annotations

from array import array

MASK = (1 << 64) - 1
LENGTH = 2048
VOCAB_SIZE = 49152
# Per level of the tree: children, shortest and longest edge in tokens.
LEVELS = ((8, 200, 700), (12, 100, 500), (24, 100, 400))


class SplitMix64:
    """Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014."""

    def __init__(self, seed: int) -> None:
        self.state = seed & MASK

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        return (self.next() >> 11) % n

    def token_ids(self, n: int) -> array[int]:
        """n ids, three from each number: 16 bits each, reduced to the vocabulary."""
        ids = array("q")
        while len(ids) < n:
            z = self.next()
            ids.extend(((z >> shift) & 0xFFFF) % VOCAB_SIZE for shift in (0, 16, 32))
        return ids[:n]

    def low_branch(self, n_children: int) -> int:
        """Index below n_children, small ones more often: floor(n u^2), u uniform in [0, 1)."""
        u = self.below(1 << 20)
        return (n_children * u * u) >> 40


class PrefixTree:
    """The ids on each edge of the tree; an edge's own seed follows from the path to it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.edges: dict[tuple[int, ...], array[int]] = {}

    def edge(self, path: tuple[int, ...]) -> array[int]:
        if path not in self.edges:
            _, shortest, longest = LEVELS[len(path) - 1]
            seed = self.seed
            for branch in path:
                seed = (seed * 1000003 + branch + 1) & MASK
            rng = SplitMix64(seed)
            n_ids = shortest + rng.below(longest - shortest + 1)
            self.edges[path] = rng.token_ids(n_ids)
        return self.edges[path]


def make_sequences(n: int, seed: int = 1, length: int = LENGTH) -> list[array[int]]:
    """n sequences of `length` token ids, as array('q')."""
    tree = PrefixTree(seed)
    rng = SplitMix64(seed * 7919 + 17)
    sequences: list[array[int]] = []
    for i in range(n):
        dice = rng.below(100)
        if i > 20 and dice < 5:
            sequences.append(sequences[rng.below(i)])
            continue
        if i > 20 and dice < 15:
            shared = sequences[rng.below(i)][: length * 3 // 4]
        else:
            path: tuple[int, ...] = ()
            shared = array("q")
            for n_children, _, _ in LEVELS:
                path += (rng.low_branch(n_children),)
                shared = shared + tree.edge(path)
        shared = shared[:length]
        sequences.append(shared + rng.token_ids(length - len(shared)))
    return sequences


def shuffled(n: int, seed: int) -> list[int]:
    """Fisher-Yates over range(n)."""
    rng = SplitMix64(seed)
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = rng.below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order
