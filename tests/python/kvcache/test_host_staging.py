"""HostStaging: what is taken stays apart from all else until `reset`, and then costs nothing."""

from __future__ import annotations

import random

import pytest
import torch

from astrai import _C
from astrai.kvcache import HostStaging
from device_sync import no_device_sync

DTYPES = (torch.int32, torch.uint8, torch.float32, torch.int64)
CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_taken_is_aligned_and_overlaps_nothing_until_the_reset(seed: int) -> None:
    rng = random.Random(seed)
    staging = HostStaging(CPU, 1000)
    for _ in range(4):
        taken = []
        for i in range(30):
            tensor = staging.take(rng.randrange(200), rng.choice(DTYPES))
            assert tensor.data_ptr() % 64 == 0 or not len(tensor)
            taken.append((tensor.fill_(i), i))
        assert all((tensor == i).all() for tensor, i in taken)
        staging.reset()


def test_the_same_launches_allocate_once() -> None:
    staging = HostStaging(CPU, 64)
    seen = []
    for _ in range(6):
        seen.append([staging.take(n, torch.int32).data_ptr() for n in (3, 40, 7, 100)])
        staging.reset()
    assert seen[-1] == seen[-2] == seen[-3]
    assert len(set(seen[-1])) == 4


def test_a_chunk_that_cannot_be_had_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    staging = HostStaging(CPU, 64)

    def fail(_: object, n_bytes: int) -> torch.Tensor:
        raise MemoryError(n_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(HostStaging, "_chunk", fail)
        with pytest.raises(MemoryError):
            staging.take(40, torch.int32)

    assert len(staging.take(40, torch.int32)) == 40


def test_what_is_held_is_a_copy() -> None:
    values = torch.arange(12, dtype=torch.float32).view(3, 4)
    held = HostStaging(CPU).hold(values)
    expected = values.clone()
    values.zero_()
    assert held.shape == (3, 4) and torch.equal(held, expected)


@pytest.mark.gpu
def test_copies_of_pinned_memory_wait_for_nobody_either_way() -> None:
    """While the device sleeps, so that a source which is read late, or filled anew early, shows."""
    staging = HostStaging(torch.device("cuda"), 1 << 20)
    values = staging.hold(torch.arange(50_000))
    back = staging.take(50_000, torch.int64).zero_()
    with no_device_sync():
        torch.cuda._sleep(200_000_000)
        device = values.to("cuda", non_blocking=True)
        back.copy_(device, non_blocking=True)
        assert not back.any()  # it has not run
        others = staging.take(50_000, torch.int64).fill_(-1)
    torch.cuda.synchronize()
    assert torch.equal(back, torch.arange(50_000)) and (others == -1).all()


@pytest.mark.gpu
def test_memory_that_cannot_be_had_is_no_error_of_the_next_launch() -> None:
    torch.zeros(1, device="cuda")
    with pytest.raises(_C.Error, match="PinnedBuffer"):
        _C.PinnedBuffer(1 << 50)
    assert (torch.ones(4, device="cuda") + 1).sum() == 8  # torch looks at the last error
