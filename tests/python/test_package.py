"""The package as installed or built in place: light imports, exports, tensors as arguments."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import astrai
from astrai import _C


def run_python(code: str) -> str:
    """Run code in a fresh interpreter that finds the same astrai; returns what it prints."""
    folder = str(Path(_C.__file__).parents[1])
    preamble = f"import sys; sys.path.insert(0, {folder!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", preamble + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_astrai_loads_no_heavy_module() -> None:
    heavy = ("torch", "numpy", "fastapi", "transformers", "tokenizers", "astrai._C")
    loaded = run_python(f"import astrai; print([m for m in {heavy!r} if m in sys.modules])")
    assert loaded == "[]"


def test_the_extension_and_env_import_where_torch_is_missing() -> None:
    code = """
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
import astrai, astrai._C, astrai.env
print(astrai.__version__ == astrai._C.__version__, astrai.env.attention_backend() == "")
"""
    assert run_python(code) == "True True"


def test_all_is_sorted_and_every_name_resolves() -> None:
    assert astrai.__all__ == sorted(astrai.__all__)
    assert all(getattr(astrai, name) is not None for name in astrai.__all__)


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'astrai' has no attribute 'Engine'"):
        astrai.Engine  # noqa: B018 - the access is the test


def test_the_version_is_one_number() -> None:
    assert astrai.__version__ == _C.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", astrai.__version__)


def test_kernel_unavailable_is_a_runtime_error() -> None:
    assert issubclass(_C.KernelUnavailableError, RuntimeError)


def test_the_extension_links_the_c_and_cpp_run_time_alone() -> None:
    done = subprocess.run(["ldd", _C.__file__], capture_output=True, text=True, check=True)
    libraries = {
        line.split()[0].split("/")[-1] for line in done.stdout.splitlines() if line.strip()
    }
    run_time = re.compile(
        r"(linux-vdso|ld-linux[\w-]*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so"
    )
    assert not [name for name in libraries if not run_time.match(name)]


def test_a_build_reports_kernels_exactly_when_it_has_cuda() -> None:
    assert bool(_C.compiled_instances()) == _C.BUILT_WITH_CUDA
    assert bool(_C.cuda_archs()) == _C.BUILT_WITH_CUDA
    assert _C.CUDA_REASON


# ---- tensors as arguments: rotary_emb is the probe, its checks read shape, strides and dtype ----


def probe(x: object) -> str:
    """The message with which rotary_emb refuses x: it tells what the binding saw."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        _C.rotary_emb(x, torch.zeros(1, 1, 2), torch.zeros(1))  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, 3, 5),
        torch.zeros(5, 3, 2).permute(2, 1, 0),
        torch.nn.Parameter(torch.zeros(2, 3, 5)),
        np.zeros((2, 3, 5), np.float32),
        np.zeros((5, 3, 2), np.float32).T,
        np.zeros((4, 3, 5), np.float32)[::-2],
    ],
    ids=["tensor", "permuted", "parameter", "array", "transposed", "reversed"],
)
def test_tensors_and_arrays_arrive_with_their_shape(x: object) -> None:
    assert "out has shape [1]; expected [T=2, H=3, D=5]" in probe(x)


def test_a_slice_arrives_at_its_own_first_element() -> None:
    # out starts one row after x: were the offset lost, both would start alike and be refused.
    x = torch.zeros(4, 1, 32, dtype=torch.bfloat16)
    freqs = torch.zeros(3, 16, 2)
    with pytest.raises(ValueError, match="out starts where x starts"):
        _C.rotary_emb(x[1:], freqs, x.as_strided((3, 1, 32), (16, 32, 1), 32))
    expected = ValueError if _C.BUILT_WITH_CUDA else _C.KernelUnavailableError
    with pytest.raises(expected, match=r"on the CPU|no CUDA kernels"):
        _C.rotary_emb(x[:3], freqs, x[1:])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(1, 1, 2, dtype=torch.complex64), "DLPack code 5, 64 bits"),
        (torch.zeros(1, 1, 2, device="meta"), "no plain memory"),
        (torch.zeros(1, 1, 2).to_sparse(), "no plain memory"),
        (torch.zeros(*[1] * 9), "has 9 dimensions"),
        (np.zeros((1, 1, 2), np.complex64), "elements of format 'Zf'"),
        (np.zeros(3, np.dtype(">f4")), "elements of format '>f'"),
        ("text", "incompatible function arguments"),
        (None, "incompatible function arguments"),
        ([1.0, 2.0], "incompatible function arguments"),
    ],
    ids=["complex", "meta", "sparse", "9-d", "complex array", "big-endian", "str", "None", "list"],
)
def test_what_is_no_tensor_of_ours_is_a_type_error(bad: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        _C.rotary_emb(bad, torch.zeros(1, 1, 2), torch.zeros(1))  # type: ignore[arg-type]


def test_a_read_only_array_is_refused_as_an_output() -> None:
    x = torch.zeros(1, 1, 32, dtype=torch.float16)
    out = np.zeros((1, 1, 32), np.float16)
    out.setflags(write=False)
    with pytest.raises(ValueError, match="out is a read-only buffer"):
        _C.rotary_emb(x, torch.zeros(1, 16, 2), out)  # type: ignore[arg-type]


def test_an_array_is_given_back_after_the_call() -> None:
    memory = bytearray(64)
    probe(memory)
    memory.extend(b"!")  # BufferError if the call still held its buffer


def test_a_call_changes_no_reference_count() -> None:
    x = torch.zeros(2, 3, 5)
    before = sys.getrefcount(x)
    for _ in range(10):
        probe(x)
    gc.collect()  # the caught errors hold the frames they passed through
    assert sys.getrefcount(x) == before


def test_prefill_tile_rows_take_torch_types_and_plain_ones() -> None:
    rows = _C.prefill_q_tile_rows(8, 2, 64, torch.bfloat16, torch.device("cuda"))
    assert rows == _C.prefill_q_tile_rows(8, 2, 64, "bfloat16", 0)
    assert rows >= 1
    with pytest.raises(ValueError, match="dtype is 'int8'; accepted"):
        _C.prefill_q_tile_rows(8, 2, 64, torch.int8, 0)
