"""The CUDA context of a process that has other things to do while the driver makes it."""

from __future__ import annotations

import ctypes
import threading
from importlib import metadata

from astrai import _C

__all__ = ["begin_cuda_context"]


def begin_cuda_context(device: str) -> None:
    """Have the driver make a device's context on a thread, which needs no torch and mostly runs
    beside its import. torch finds that context when it asks for one.

    device: as in `load_model`. Does nothing where no GPU will be used; of what fails here torch
    will tell.
    """
    ordinal = _ordinal(device)
    if ordinal is not None and _C.cuda_archs() and not _is_cpu_torch():
        threading.Thread(target=_retain, args=(ordinal,), daemon=True).start()


def _ordinal(device: str) -> int | None:
    """The number of a CUDA device by its name, None for another one."""
    if device in ("auto", "cuda"):
        return 0
    kind, _, number = device.partition(":")
    return int(number) if kind == "cuda" and number.isdecimal() else None


def _is_cpu_torch() -> bool:
    """Is the torch that is installed a build for CPUs? One that tells no version may be."""
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return True


def _retain(ordinal: int) -> None:
    """Take part in the device's primary context, until the process ends."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    found, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(found), ordinal) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), found)
