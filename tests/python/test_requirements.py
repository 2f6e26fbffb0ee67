"""What is said where something that AstrAI needs is missing, too old or of another kind.

Each message has three parts: what was found, what is needed, how to get it.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from astrai import _C, requirements
from astrai.extension import ops
from astrai.extension.ops import _availability
from astrai.models.device import resolve_device

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(_C.__file__).parent


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Code in a fresh interpreter that finds this astrai."""
    preamble = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    command = [sys.executable, "-c", preamble + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# ---- torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["2.10.0", "2.13.0+cpu", "3.0.0a0"])
def test_a_torch_that_serves_is_accepted(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: found)
    requirements.require_torch()


@pytest.mark.parametrize("found", ["2.9.1+cu128", "1.13.1"])
def test_an_old_torch_is_refused_with_the_one_to_install(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: found)
    with pytest.raises(requirements.MissingRequirementError) as caught:
        requirements.require_torch()
    assert str(caught.value) == (
        f"astrai needs torch 2.10 or newer and found {found}; pip install torch==2.13.0"
    )


WITHOUT_TORCH = """
from importlib import util
find = util.find_spec
util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
"""


def test_the_engine_says_which_torch_it_needs() -> None:
    done = run_python(WITHOUT_TORCH + "from astrai import InferenceEngine")
    assert done.returncode == 1
    assert "needs torch 2.10 or newer and found none; pip install torch==2.13.0" in done.stderr


def test_the_server_says_which_torch_it_needs_without_a_trace() -> None:
    code = "from astrai.cli.serve import main; sys.exit(main([]))"
    done = run_python(WITHOUT_TORCH + code)
    assert done.returncode == 2
    assert done.stderr == (
        "astrai-serve: error: astrai needs torch 2.10 or newer and found none; "
        "pip install torch==2.13.0\n"
    )


# ---- Python --------------------------------------------------------------------------------------


def test_an_older_python_is_refused_with_the_way_to_a_newer_one() -> None:
    done = run_python("sys.version_info = (3, 9, 2, 'final', 0)\nimport astrai")
    assert done.returncode == 1
    assert f"astrai needs Python 3.10 or newer; {sys.executable} is" in done.stderr
    assert "python3.12 -m venv ENV" in done.stderr


def test_a_python_that_the_extension_was_not_built_for_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "astrai"
    folder.mkdir()
    (folder / "__init__.py").write_text((PACKAGE / "__init__.py").read_text())
    (folder / "_C.cpython-399-x86_64-linux-gnu.so").touch()
    code = "sys.path.insert(0, sys.argv[1])\nfrom astrai import _C"
    done = run_python(code, str(tmp_path))
    assert done.returncode == 1
    assert "astrai._C was built for _C.cpython-399-x86_64-linux-gnu.so" in done.stderr
    assert f"is Python {sys.version.split()[0]}" in done.stderr
    assert "python -m pip install astrai" in done.stderr


# ---- driver and GPU ------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> object:
    """Sets what the driver runs; torch sees no device."""

    def found(version: tuple[int, int] | None) -> None:
        monkeypatch.setattr(requirements, "driver_cuda_version", lambda: version)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def refusal() -> str:
    with pytest.raises(ValueError, match="device cuda was asked for") as caught:
        resolve_device("cuda")
    return str(caught.value)


def test_a_torch_for_cpus_is_told(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    told = refusal()
    assert f"torch {torch.__version__} is a build for CPUs; install one for CUDA" in told
    assert told.endswith("or use device cpu.")


def test_a_missing_driver_is_told(driver) -> None:
    driver(None)
    told = refusal()
    assert "there is no NVIDIA driver (libcuda.so.1); torch" in told
    assert "is built with CUDA 13.0 and needs driver 580 or newer: install it" in told


def test_an_old_driver_is_told(driver) -> None:
    driver((12, 4))
    told = refusal()
    assert "the NVIDIA driver runs CUDA up to 12.4; torch" in told
    assert "needs driver 580 or newer: update it" in told
    assert "install builds of torch and astrai for CUDA 12" in told


def test_hidden_gpus_are_told(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver((13, 0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES is ''; unset it" in refusal()


def test_a_driver_without_a_gpu_is_told(driver) -> None:
    driver((13, 0))
    assert "`nvidia-smi -L` should list a GPU" in refusal()


def test_there_is_no_driver_version_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(requirements.ctypes, "CDLL", missing)
    assert requirements.driver_cuda_version() is None


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> object:
    """Sets a GPU that torch sees, and what this build has for it."""

    def seen(capability: tuple[int, int], archs: list[str], driver: tuple[int, int] = (13, 0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(requirements, "driver_cuda_version", lambda: driver)
        monkeypatch.setattr(_C, "BUILT_WITH_CUDA", True)
        monkeypatch.setattr(_C, "CUDA_REASON", "nvcc 13.0 at /usr/bin/nvcc")
        monkeypatch.setattr(_C, "cuda_archs", lambda: archs)
        monkeypatch.setattr(_C, "compiled_instances", lambda: {"rms_norm": [("bfloat16", 0)]})
        _availability.unavailable_reason.cache_clear()

    yield seen
    _availability.unavailable_reason.cache_clear()


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
def test_machine_code_for_8_0_and_its_ptx_run_on_every_later_card(card, capability) -> None:
    card(capability, ["80", "90a"])
    assert ops.unavailable_reason("rms_norm", torch.bfloat16) is None


def test_a_card_without_code_is_told_how_to_get_it(card) -> None:
    card((8, 9), ["90a"])
    assert ops.unavailable_reason("rms_norm", torch.bfloat16) == (
        "A card has compute capability 8.9; this build has code for 90a: "
        "ASTRAI_CUDA_ARCHS=89 pip install . in a checkout adds it"
    )


def test_a_card_that_is_too_old_is_told(card) -> None:
    card((7, 5), ["80", "90a"])
    assert ops.unavailable_reason("rms_norm", torch.bfloat16) == (
        "A card has compute capability 7.5; the kernels need 8.0 or newer: "
        "use another GPU, or device cpu"
    )


def test_a_driver_too_old_for_the_kernels_alone_is_told(card) -> None:
    card((9, 0), ["80", "90a"], driver=(12, 8))  # torch for CUDA 12 sees the card all the same
    told = ops.unavailable_reason("rms_norm", torch.bfloat16)
    assert told is not None
    assert "the NVIDIA driver runs CUDA up to 12.8; astrai" in told
    assert "is built with CUDA 13.0 and needs driver 580 or newer: update it" in told


# ---- the CUDA compiler ---------------------------------------------------------------------------


def configure(nvcc: Path) -> str:
    """What cmake/AstraiCuda.cmake says with ASTRAI_WITH_CUDA=ON and this compiler."""
    definitions = ["-DASTRAI_WITH_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    command = ["cmake", *definitions, "-P", str(ROOT / "cmake" / "AstraiCuda.cmake")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def test_a_missing_nvcc_is_an_error_where_kernels_were_asked_for(tmp_path: Path) -> None:
    told = configure(tmp_path / "nvcc")
    assert f"ASTRAI_WITH_CUDA=ON but {tmp_path}/nvcc does not run." in told
    assert "nvcc 12.0 or newer is needed" in told
    assert "CUDA_HOME=FOLDER pip install ." in told
    assert "ASTRAI_WITH_CUDA=OFF pip install ." in told


def test_an_old_nvcc_is_an_error_where_kernels_were_asked_for(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho Cuda compilation tools, release 11.8, V11.8.89\n")
    nvcc.chmod(0o755)
    told = configure(nvcc)
    assert f"{nvcc} is 11.8, at least 12.0 is needed" in told
