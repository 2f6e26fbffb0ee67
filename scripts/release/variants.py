"""The variants of the wheel: which kernels each has, and which CUDA toolkit it is built with.

pypi              no local version, which a public index refuses; CUDA 13.0 on x86-64, CPU elsewhere
cpu               0.1.0+cpu, no kernels
cu126 cu128 cu130 0.1.0+cuNNN, kernels by that toolkit
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

PYPI_CUDA = "13.0"
TOOLKITS = {"cu126": "12.6", "cu128": "12.8", "cu130": "13.0"}
VARIANTS = ("pypi", "cpu", *TOOLKITS)
# 8.6 and 8.9 run the code of 8.0, later cards compile its PTX; 9.0a has instructions of its own.
ARCHS = "80,90a"


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    local: str  # local version, "" for none
    cuda: str  # version of the toolkit, "" for a build without kernels


def variant_named(name: str, machine: str = "") -> Variant:
    """machine: as platform.machine() tells it, which is the default."""
    if name == "pypi":
        on_x86 = (machine or platform.machine()) == "x86_64"
        return Variant(name, local="", cuda=PYPI_CUDA if on_x86 else "")
    if name not in VARIANTS:
        raise ValueError(f"there is no variant '{name}'; there are {', '.join(VARIANTS)}")
    return Variant(name, local=name, cuda=TOOLKITS.get(name, ""))


def build_environment(variant: Variant, toolkit: Path | None, archs: str) -> dict[str, str]:
    """The variables with which CMake builds this variant, beside those in force.

    Raises ValueError when the toolkit's compiler is missing or has another version."""
    if not variant.cuda:
        return {"ASTRAI_WITH_CUDA": "OFF"}
    nvcc = str(toolkit / "bin" / "nvcc") if toolkit else os.environ.get("CUDACXX", "nvcc")
    found = nvcc_version(nvcc)
    if found != variant.cuda:
        raise ValueError(
            f"variant {variant.name} needs nvcc {variant.cuda}; {nvcc} "
            f"{f'is {found}' if found else 'does not run'}. "
            f"Name a CUDA {variant.cuda} toolkit by --cuda FOLDER"
        )
    chosen = {"ASTRAI_WITH_CUDA": "ON", "ASTRAI_CUDA_ARCHS": archs}
    return {**chosen, "CUDACXX": nvcc} if toolkit else chosen


def nvcc_version(nvcc: str) -> str:
    """Such as 13.0; "" where it does not run."""
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    found = re.search(r"release (\d+\.\d+)", done.stdout)
    return found.group(1) if found else ""
