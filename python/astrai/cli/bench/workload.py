"""The requests of a benchmark: random token ids from a seed, the same for every server."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["PRESETS", "BenchRequest", "Workload", "WorkloadError"]


class WorkloadError(ValueError):
    """A workload that makes no sense; the message names the option."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """at_s: when it is sent, in seconds from the start."""

    prompt_ids: list[int]
    n_output: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """n_requests prompts of a uniform length, each answered by a uniform number of tokens.

    input_len, output_len: least and greatest, inclusive. shared_prefix: tokens that all prompts
    start with, before those of input_len. rate: mean requests a second of a Poisson process; None
    sends all at once. concurrency: at most so many at a time; None without limit. vocabulary: ids
    are drawn from 0 to one less.
    """

    n_requests: int = 64
    input_len: tuple[int, int] = (100, 1024)
    output_len: tuple[int, int] = (100, 1024)
    shared_prefix: int = 0
    rate: float | None = None
    concurrency: int | None = None
    vocabulary: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("n_requests", 1), ("vocabulary", 1), ("shared_prefix", 0)):
            if getattr(self, name) < low:
                raise WorkloadError(f"{name} should be at least {low}, got {getattr(self, name)}")
        if self.concurrency is not None and self.concurrency < 1:
            raise WorkloadError(f"concurrency should be at least 1, got {self.concurrency}")
        if self.rate is not None and not self.rate > 0:
            raise WorkloadError(f"rate should be above 0, got {self.rate}")
        for name in ("input_len", "output_len"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise WorkloadError(f"{name} should be LOW:HIGH from 1 on, got {low}:{high}")

    def requests(self) -> list[BenchRequest]:
        """The same list for the same workload, on every machine."""
        rng = random.Random(self.seed)
        shared = self._ids(rng, self.shared_prefix)
        prompts = [
            shared + self._ids(rng, rng.randint(*self.input_len)) for _ in range(self.n_requests)
        ]
        lengths = [rng.randint(*self.output_len) for _ in range(self.n_requests)]
        at_s, times = 0.0, []
        for _ in range(self.n_requests):
            times.append(at_s)
            at_s += rng.expovariate(self.rate) if self.rate is not None else 0.0
        return [BenchRequest(*one) for one in zip(prompts, lengths, times, strict=True)]

    def _ids(self, rng: random.Random, n: int) -> list[int]:
        return [rng.randrange(self.vocabulary) for _ in range(n)]


PRESETS = {
    "throughput": Workload(256),
    "latency": Workload(8, (512, 512), (256, 256), concurrency=1),
    "prefix": Workload(64, (128, 128), (64, 64), shared_prefix=4096),
    "arrivals": Workload(256, (100, 1024), (32, 256), rate=8.0),
}
