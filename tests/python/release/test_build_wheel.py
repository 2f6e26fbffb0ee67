"""scripts/build_wheel: what is chosen and refused; that it builds is CI's own section."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from script_folder import SCRIPTS

from release import gpu_code, variants
from release.gpu_code import GpuCode


def fake_tool(path: Path, says: str) -> Path:
    """A program that prints `says` whatever it is asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'SAID'\n{says}\nSAID\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "machine", "local", "cuda"),
    [
        ("pypi", "x86_64", "", "13.0"),
        ("pypi", "aarch64", "", ""),
        ("cpu", "x86_64", "cpu", ""),
        ("cu126", "x86_64", "cu126", "12.6"),
        ("cu128", "x86_64", "cu128", "12.8"),
        ("cu130", "x86_64", "cu130", "13.0"),
    ],
)
def test_each_variant_has_its_version_and_its_toolkit(
    name: str, machine: str, local: str, cuda: str
) -> None:
    variant = variants.variant_named(name, machine)
    assert (variant.local, variant.cuda) == (local, cuda)


def test_an_unknown_variant_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no variant 'cu999'; there are pypi, cpu, cu126"):
        variants.variant_named("cu999")


def test_a_toolkit_by_path_is_used(tmp_path: Path) -> None:
    nvcc = fake_tool(tmp_path / "bin" / "nvcc", "Cuda compilation tools, release 12.8, V12.8.93")
    chosen = variants.build_environment(variants.variant_named("cu128"), tmp_path, "80,90a")
    assert chosen == {
        "ASTRAI_WITH_CUDA": "ON",
        "ASTRAI_CUDA_ARCHS": "80,90a",
        "CUDACXX": str(nvcc),
    }


def test_a_toolkit_of_another_version_is_refused(tmp_path: Path) -> None:
    fake_tool(tmp_path / "bin" / "nvcc", "Cuda compilation tools, release 12.8, V12.8.93")
    command = [sys.executable, SCRIPTS / "build_wheel", "cu126", "--cuda", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "variant cu126 needs nvcc 12.6" in done.stderr
    assert "is 12.8. Name a CUDA 12.6 toolkit by --cuda FOLDER" in done.stderr


def test_a_missing_compiler_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bin/nvcc does not run\. Name a CUDA 13\.0 toolkit"):
        variants.build_environment(variants.variant_named("cu130"), tmp_path, "80")


def test_a_build_without_kernels_asks_for_no_compiler() -> None:
    chosen = variants.build_environment(variants.variant_named("cpu"), None, "80,90a")
    assert chosen == {"ASTRAI_WITH_CUDA": "OFF"}


def test_architectures_are_counted_from_what_cuobjdump_lists(tmp_path: Path) -> None:
    listed = "ELF file    1: _C.1.sm_80.cubin\nELF file    2: _C.2.sm_90a.cubin\n"
    listed += "ELF file    3: _C.3.sm_80.cubin"
    tool = fake_tool(tmp_path / "bin" / "cuobjdump", listed)
    assert gpu_code.find_cuobjdump(tmp_path) == tool
    assert gpu_code.gpu_code(tmp_path, tool).machine == {"sm_80": 2, "sm_90a": 1}


FITTING = GpuCode(machine={"sm_80": 50, "sm_90a": 50}, ptx={"sm_80": 50})


def test_code_for_the_asked_architectures_fits() -> None:
    assert gpu_code.missing_code(FITTING, ["80", "90a"]) == []
    assert gpu_code.missing_code(GpuCode({"sm_90a": 1}, {}), ["90a"]) == []


def test_missing_and_unasked_code_is_named() -> None:
    assert gpu_code.missing_code(GpuCode({"sm_90a": 1}, {}), ["80", "90a"]) == [
        "no machine code for sm_80",
        "no PTX for sm_80",
    ]
    assert gpu_code.missing_code(FITTING, ["90a"]) == [
        "unasked code for sm_80",
        "unasked PTX for sm_80",
    ]
