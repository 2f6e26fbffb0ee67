"""Copies from the mapped file into place: every dtype, order and shape, in pieces, on threads."""

from __future__ import annotations

import math

import pytest
import torch

from astrai.models import tensor_copy
from astrai.models.tensor_copy import StagedCopier, copy_on_cpu, is_finite

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_copy, "_PIECE_BYTES", 256)


def staged(source: torch.Tensor, out: torch.Tensor, row_index: torch.Tensor | None) -> bool:
    """The way to a GPU, on a CPU: buffers of several threads without pinning and streams."""
    return StagedCopier(out.device, n_threads=3).copy(source, out, row_index)


COPIES = {"cpu": copy_on_cpu, "staged": staged}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("shape", [(1,), (7,), (300,), (1, 5), (50, 3), (3, 400), (4, 30, 5)])
@pytest.mark.parametrize("source_dtype", DTYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_copy_is_the_source_in_the_serving_dtype(
    copy: str, shape: tuple[int, ...], source_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    source = torch.randn(shape).to(source_dtype)
    wide = torch.full((*shape[:-1], 2 * shape[-1]), -7.0, dtype=dtype)
    out = wide[..., : shape[-1]]  # rows need not lie one behind another
    assert COPIES[copy](source, out, None)
    assert torch.equal(out, source.to(dtype))
    assert (wide[..., shape[-1] :] == -7.0).all()


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("shape", [(9,), (200,), (31, 40)])
@pytest.mark.parametrize("source_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_go_where_the_index_says(
    copy: str, shape: tuple[int, ...], source_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    source = torch.randn(shape).to(source_dtype)
    row_index = torch.randperm(shape[0])
    out = torch.empty(shape, dtype=dtype)
    assert COPIES[copy](source, out, row_index)
    assert torch.equal(out[row_index], source.to(dtype))


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", [0, 1234, -1])
@pytest.mark.parametrize("has_index", [False, True])
def test_one_value_that_is_not_finite_is_seen(
    copy: str, bad: float, dtype: torch.dtype, place: int, has_index: bool
) -> None:
    source = torch.randn(50, 40).to(dtype)
    source.view(-1)[place] = bad
    row_index = torch.randperm(50) if has_index else None
    assert not COPIES[copy](source, torch.empty(50, 40, dtype=dtype), row_index)


def test_a_value_beyond_the_serving_dtype_is_seen() -> None:
    source = torch.tensor([[1.0, 70000.0]])
    assert copy_on_cpu(source, torch.empty(1, 2), None)
    assert not copy_on_cpu(source, torch.empty(1, 2, dtype=torch.float16), None)


def test_nothing_is_finite() -> None:
    assert is_finite(torch.empty(0, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_index", [False, True])
def test_a_gpu_gets_the_same_rows(dtype: torch.dtype, has_index: bool) -> None:
    source = torch.randn(700, 60).to(torch.bfloat16)
    row_index = torch.randperm(700) if has_index else None
    expected = torch.empty(700, 60, dtype=dtype)
    copy_on_cpu(source, expected, row_index)
    out = torch.empty(700, 60, dtype=dtype, device="cuda")
    on_device = None if row_index is None else row_index.to("cuda")
    copier = StagedCopier(out.device)
    assert copier.copy(source, out, on_device)
    assert torch.equal(out.cpu(), expected)
    source[350, 7] = math.nan
    assert not copier.copy(source, out, on_device)


@pytest.mark.gpu
def test_a_copy_waits_for_what_the_callers_stream_does_with_the_memory() -> None:
    source = torch.randn(700, 60)
    out = torch.empty(700, 60, device="cuda")
    copier = StagedCopier(out.device)
    assert copier.copy(source, out, None)  # its threads have their streams now
    torch.cuda._sleep(200_000_000)  # a tenth of a second
    out.fill_(-7.0)
    assert copier.copy(source, out, None)
    assert torch.equal(out.cpu(), source)
