"""`begin_cuda_context`: which device's context a start asks the driver for, if any."""

from __future__ import annotations

import ctypes
import threading
from importlib import metadata
from typing import Any

import pytest

from astrai import _C
from astrai.cli.cuda_context import begin_cuda_context


class FakeDriver:
    """Has `n_devices`; remembers the contexts that were made."""

    def __init__(self, n_devices: int) -> None:
        self._n_devices = n_devices
        self.retained: list[int] = []

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, out: Any, ordinal: int) -> int:
        out._obj.value = ordinal
        return 0 if ordinal < self._n_devices else 101

    def cuDevicePrimaryCtxRetain(self, out: Any, device: ctypes.c_int) -> int:
        self.retained.append(device.value)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Of a machine with two GPUs, under builds for CUDA."""
    made = FakeDriver(n_devices=2)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
    monkeypatch.setattr(_C, "cuda_archs", lambda: ["90a"])
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0")
    return made


def retained(driver: FakeDriver, device: str) -> list[int]:
    before = set(threading.enumerate())
    begin_cuda_context(device)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    return driver.retained


@pytest.mark.parametrize(
    ("device", "expected"),
    [("auto", [0]), ("cuda", [0]), ("cuda:1", [1]), ("cuda:7", []), ("cpu", []), ("cuda:x", [])],
)
def test_the_device_that_will_serve_gets_its_context(
    driver: FakeDriver, device: str, expected: list[int]
) -> None:
    assert retained(driver, device) == expected


def test_builds_for_cpus_make_no_context(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
        assert retained(driver, "auto") == []
    monkeypatch.setattr(_C, "cuda_archs", lambda: [])
    assert retained(driver, "auto") == []


def test_a_machine_without_a_driver_is_passed_over(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert retained(driver, "cuda") == []
