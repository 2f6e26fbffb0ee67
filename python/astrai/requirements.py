"""What AstrAI needs of Python, torch, driver and GPU, and the words for what is there instead.

Each answer says what was found, what is needed, and the command or step that gets there. Of the
lowest layer: imports nothing of astrai but _C, and torch inside functions alone. Thread safe.
"""

from __future__ import annotations

import ctypes
import os
import re
from importlib import util

from astrai import _C

__all__ = [
    "MissingRequirementError",
    "driver_cuda_version",
    "no_gpu_reason",
    "require_torch",
    "unfit_gpu_reason",
]

TORCH = (2, 10)  # the first whose tensors cross by DLPack's exchange table, decision 0001
TESTED_TORCH = "2.13.0"
OLDEST_GPU = (8, 0)  # the kernels use its instructions
# The first driver of each CUDA release series; a driver runs every program of its series.
# https://docs.nvidia.com/deploy/cuda-compatibility/
DRIVERS = {12: "525", 13: "580"}


class MissingRequirementError(ImportError):
    """Something that AstrAI needs is not installed, or too old."""


def require_torch() -> None:
    """Raises MissingRequirementError without a torch that serves. Does not import it."""
    from importlib import metadata  # slow to import

    needed = "astrai needs torch {}.{} or newer".format(*TORCH)
    remedy = f"pip install torch=={TESTED_TORCH}"
    if util.find_spec("torch") is None:
        raise MissingRequirementError(f"{needed} and found none; {remedy}")
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return  # a source tree of torch, which tells no version without being imported
    if _version(found) < TORCH:
        raise MissingRequirementError(f"{needed} and found {found}; {remedy}")


def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the NVIDIA driver runs, such as (13, 0); None where there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def no_gpu_reason() -> str:
    """Why torch sees no CUDA device here; to be asked only when it sees none."""
    import torch

    why = "torch sees no CUDA device: "
    otherwise = "or use device cpu"
    if torch.version.cuda is None:
        return (
            f"{why}torch {torch.__version__} is a build for CPUs; install one for CUDA "
            f"(pip install --force-reinstall torch=={TESTED_TORCH} from an index that has it), "
            f"{otherwise}"
        )
    if (too_old := _driver_problem(f"torch {torch.__version__}", torch.version.cuda)) is not None:
        return f"{why}{too_old}, {otherwise}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return (
            f"{why}CUDA_VISIBLE_DEVICES is '{hidden}'; unset it or name a GPU that `nvidia-smi -L` "
            f"lists, {otherwise}"
        )
    return f"{why}the driver is there; `nvidia-smi -L` should list a GPU, {otherwise}"


def unfit_gpu_reason(name: str, capability: tuple[int, int]) -> str | None:
    """Why this build's kernels cannot run on a GPU that torch sees, or None when they can.

    name, capability: as torch.cuda tells them, such as "NVIDIA H200" and (9, 0).
    """
    built_with = re.search(r"nvcc (\d+\.\d+)", _C.CUDA_REASON)
    if built_with is not None:
        too_old = _driver_problem(f"astrai {_C.__version__}", built_with.group(1))
        if too_old is not None:
            return too_old
    archs = _C.cuda_archs()
    if any(_runs_on(arch, capability) for arch in archs):
        return None
    found = f"{name} has compute capability {capability[0]}.{capability[1]}"
    if capability < OLDEST_GPU:
        return f"{found}; the kernels need 8.0 or newer: use another GPU, or device cpu"
    return (
        f"{found}; this build has code for {', '.join(archs)}: "
        f"ASTRAI_CUDA_ARCHS={capability[0]}{capability[1]} pip install . in a checkout adds it"
    )


def _driver_problem(program: str, built_with: str) -> str | None:
    """Why the driver does not run `program`, built with that CUDA; None when it does."""
    series = _version(built_with)[0]
    driver = DRIVERS.get(series, f"of CUDA {series}")
    needs = f"{program} is built with CUDA {built_with} and needs driver {driver} or newer"
    found = driver_cuda_version()
    if found is None:
        return f"there is no NVIDIA driver (libcuda.so.1); {needs}: install it"
    if found[0] < series:
        return (
            f"the NVIDIA driver runs CUDA up to {found[0]}.{found[1]}; {needs}: update it, "
            f"or install builds of torch and astrai for CUDA {found[0]}"
        )
    return None


def _runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """An "a" architecture runs on itself alone, a plain one by its PTX on everything newer."""
    number = int(arch.rstrip("a"))
    built = (number // 10, number % 10)
    return capability == built if arch.endswith("a") else capability >= built


def _version(text: str) -> tuple[int, int]:
    """The first two numbers of a version: (2, 13) of 2.13.0+cpu."""
    numbers = re.findall(r"\d+", text)
    return int(numbers[0]), int(numbers[1])
