"""Counter-based random numbers: a pure function of (seed, position in the output, token id).

There is no generator state to keep, so a seeded request draws the same numbers alone, in a batch
and after preemption. Noise is keyed by the token id and not by a rank: when two candidates change
places because a batched matrix product rounds differently, the draw does not move.

mix64 is the finalizer of SplitMix64, variant 13 of David Stafford
(http://zimbry.blogspot.com/2011/09/better-bit-mixing-improving-on-murmur3s.html).
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["gumbel_noise", "random_seed", "row_keys"]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the increment of SplitMix64
_MUL_1 = 0xBF58476D1CE4E5B9
_MUL_2 = 0x94D049BB133111EB


def random_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(64)


def row_keys(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> torch.Tensor:
    """One key per row, [n] int64. positions: how many tokens the row has generated, [n]."""
    keys = _mix64_numpy(seeds + np.uint64(_GOLDEN))
    keys = _mix64_numpy(keys + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    return torch.from_numpy(keys.view(np.int64))


def gumbel_noise(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32 [n, k].

    keys: [n] int64 from row_keys. token_ids: [n, k] or [1, k] int64. argmax(logits + noise) draws
    from softmax(logits) (Gumbel-max trick: Maddison et al., A* Sampling, 2014, section 2).
    """
    bits = _mix64(keys[:, None] + token_ids * _signed(_GOLDEN))
    # 53 random bits, moved by half a step so that neither 0 nor 1 can appear.
    uniform = (_shift_right(bits, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform)).float()


def _mix64_numpy(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MUL_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MUL_2)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def _mix64(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift_right(x, 30)) * _signed(_MUL_1)
    x = (x ^ _shift_right(x, 27)) * _signed(_MUL_2)
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, n: int) -> torch.Tensor:
    """Logical shift; >> of int64 copies the sign bit."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _signed(value: int) -> int:
    """The int64 with the bits of this uint64; int64 products wrap as uint64 ones do."""
    return value - (1 << 64) if value >= 1 << 63 else value & _MASK
