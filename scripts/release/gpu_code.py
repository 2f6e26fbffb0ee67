"""Which GPU architectures a binary has code for, as NVIDIA's cuobjdump lists it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GpuCode:
    machine: dict[str, int]  # sm_80 -> number of modules with machine code for it
    ptx: dict[str, int]  # sm_80 -> number of modules with PTX, which later GPUs compile


def find_cuobjdump(toolkit: Path | None = None) -> Path:
    """The toolkit's, one on PATH, or that of the package nvidia-cuda-cuobjdump.

    Raises FileNotFoundError that says how to get one."""
    named = toolkit / "bin" / "cuobjdump" if toolkit else None
    on_path = shutil.which("cuobjdump")
    packaged = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/cuobjdump"))
    for candidate in (named, Path(on_path) if on_path else None, *packaged):
        if candidate is not None and candidate.is_file():
            candidate.chmod(candidate.stat().st_mode | 0o111)  # a package's file may lack it
            return candidate
    raise FileNotFoundError(
        "no cuobjdump in the CUDA toolkit, on PATH or among the packages of this Python; "
        "pip install nvidia-cuda-cuobjdump"
    )


def gpu_code(binary: Path, cuobjdump: Path) -> GpuCode:
    return GpuCode(
        machine=_listed(binary, cuobjdump, "--list-elf"),
        ptx=_listed(binary, cuobjdump, "--list-ptx"),
    )


def _listed(binary: Path, cuobjdump: Path, flag: str) -> dict[str, int]:
    """Lines such as `ELF file    3: _C.3.sm_90a.cubin`, counted by architecture."""
    done = subprocess.run([cuobjdump, flag, binary], capture_output=True, text=True, check=False)
    counts: dict[str, int] = {}
    for arch in re.findall(r"\.(sm_\w+)\.(?:cubin|ptx)$", done.stdout, re.MULTILINE):
        counts[arch] = counts.get(arch, 0) + 1
    return dict(sorted(counts.items()))


def missing_code(code: GpuCode, archs: list[str]) -> list[str]:
    """What of `archs`, such as 80 and 90a, the code lacks or has too much; empty when it fits.

    A plain architecture stands for machine code and PTX, an "a" one for machine code alone.
    """
    machine = {f"sm_{arch}" for arch in archs}
    ptx = {f"sm_{arch}" for arch in archs if not arch.endswith("a")}
    problems = [f"no machine code for {arch}" for arch in sorted(machine - code.machine.keys())]
    problems += [f"no PTX for {arch}" for arch in sorted(ptx - code.ptx.keys())]
    problems += [f"unasked code for {arch}" for arch in sorted(code.machine.keys() - machine)]
    return problems + [f"unasked PTX for {arch}" for arch in sorted(code.ptx.keys() - ptx)]
