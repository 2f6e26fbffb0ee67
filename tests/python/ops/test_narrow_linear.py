"""narrow_linear on a GPU: against float64, the bits of the operations it joins, and rows that
depend on no others; refusals."""

from __future__ import annotations

import pytest
import torch
from rounding import ROUNDING, random_rows
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)
# (N, K): one, two and four parts, short and long, whole tiles and rests of them, one panel and
# less, one, two and three warpgroups, two blocks on a multiprocessor, more tiles than find one
SHAPES = [
    (4096, 1024),
    (1024, 3072),
    (6144, 1024),
    (8448, 512),
    (28672, 256),
    (48, 8),
    (16, 72),
    (1008, 1032),
    (3088, 4096),
    (2064, 8200),
    (36000, 64),
]
# every height of a tile of rows, and several
ROWS = (1, 17, 32, 33, 64, 90, 128, 129, 191, 255, 256, 300)


def needs_hopper() -> None:
    reason = ops.unavailable_reason("narrow_linear", torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)


def random_weight(n: int, k: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(n, k, device="cuda") / k**0.5).to(dtype)


def nan(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_is_the_float64_one_rounded_once(n: int, k: int, dtype: torch.dtype) -> None:
    needs_hopper()
    weight, bias = random_weight(n, k, dtype), random_rows((n,), dtype)
    for n_rows in ROWS:
        x = random_rows((n_rows, k), dtype)
        exact = x.double() @ weight.double().T
        sums = x.double().abs() @ weight.double().abs().T  # what float32 sums may lose
        for given in (None, bias):
            out = ops.narrow_linear(x, weight, given, out=nan(n_rows, n, dtype=dtype))
            expected = exact if given is None else exact + given.double()
            allowed = expected.abs() * ROUNDING[dtype] * 1.01 + sums * 2.0**-20
            assert torch.all((out.double() - expected).abs() <= allowed), n_rows


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_joined_operations_give_the_bits_of_single_ones(n: int, k: int, dtype: torch.dtype) -> None:
    needs_hopper()
    weight, bias = random_weight(n, k, dtype), random_rows((n,), dtype)
    for n_rows in ROWS:
        x, residual = random_rows((n_rows, k), dtype), random_rows((n_rows, n), dtype)
        for given in (None, bias):
            product = ops.narrow_linear(x, weight, given)
            gated = nan(n_rows, n // 2, dtype=dtype)
            ops.narrow_linear(x, weight, given, output="silu_mul", out=gated)
            assert torch.equal(gated, ops.silu_mul(product)), n_rows
            added = residual.clone()
            ops.narrow_linear(x, weight, given, output="add", out=added)
            assert torch.equal(added, residual + product), n_rows


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "k"), [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)])
def test_a_row_depends_neither_on_the_others_nor_on_its_place(n: int, k: int) -> None:
    needs_hopper()
    weight, x = random_weight(n, k, torch.bfloat16), random_rows((256, k), torch.bfloat16)
    together = ops.narrow_linear(x, weight)
    assert torch.equal(ops.narrow_linear(x.roll(37, 0), weight), together.roll(37, 0))
    x[1::2] = torch.nan
    for n_rows in range(1, 257):
        some = ops.narrow_linear(x[:n_rows], weight)
        assert torch.equal(some[::2], together[:n_rows:2]), n_rows
        last = ops.narrow_linear(x[256 - n_rows :], weight)
        assert torch.equal(last[n_rows % 2 :: 2], together[256 - n_rows :][n_rows % 2 :: 2]), n_rows


@pytest.mark.gpu
def test_rows_inside_wider_tensors_follow_their_strides() -> None:
    needs_hopper()
    x = random_rows((50, 1104), torch.float16)[:, 8:1032]
    weight = random_weight(208, 1040, torch.float16)[:, :1024]
    memory = nan(50, 224, dtype=torch.float16)

    ops.narrow_linear(x, weight, out=memory[:, 8:216])

    expected = ops.narrow_linear(x.contiguous(), weight.contiguous())
    assert torch.equal(memory[:, 8:216], expected)
    assert memory[:, :8].isnan().all() and memory[:, 216:].isnan().all()


@pytest.mark.gpu
def test_a_captured_product_reads_what_x_holds_at_the_replay() -> None:
    needs_hopper()
    weight, x = random_weight(1024, 2048, torch.bfloat16), random_rows((40, 2048), torch.bfloat16)
    out = ops.narrow_linear(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            ops.narrow_linear(x, weight, out=out)
    x.copy_(random_rows((40, 2048), torch.bfloat16))
    expected = ops.narrow_linear(x, weight)

    graph.replay()

    assert torch.equal(out, expected)


@pytest.mark.gpu
def test_no_rows_is_no_work() -> None:
    needs_hopper()
    weight = random_weight(24, 64, torch.bfloat16)
    assert ops.narrow_linear(random_rows((0, 64), torch.bfloat16), weight).shape == (0, 24)


def test_bad_arguments_are_refused() -> None:
    x, weight = torch.zeros(20, 16, dtype=torch.bfloat16), torch.zeros(16, 16, dtype=torch.bfloat16)
    with pytest.raises(ops.KernelUnavailableError, match="x is float32"):
        ops.narrow_linear(x.float(), weight.float())
    with pytest.raises(ValueError, match=r"weight has shape \[16, 16\]"):
        ops.narrow_linear(x[:, :8].contiguous(), weight)
    with pytest.raises(ValueError, match="x has rows of 12 elements"):
        ops.narrow_linear(x.new_zeros(20, 12), weight.new_zeros(16, 12))
    with pytest.raises(ValueError, match="gates and ups"):
        ops.narrow_linear(x, weight[:9], output="silu_mul")
    with pytest.raises(ValueError, match="out has rows of 12 elements"):
        ops.narrow_linear(x, weight[:12])
    with pytest.raises(ValueError, match="out has rows that are not on 16 bytes"):
        ops.narrow_linear(x, weight, out=x.new_zeros(20, 24)[:, 4:20])
    with pytest.raises(ValueError, match="needs out"):
        ops.narrow_linear(x, weight, output="add")
    with pytest.raises(ValueError, match="output is 'gelu'"):
        ops.narrow_linear(x, weight, output="gelu", out=x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out is x"):
        ops.narrow_linear(x, weight, out=x)
    with pytest.raises(ValueError, match="bias"):
        ops.narrow_linear(x, weight, weight[0, :8])
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"on the CPU|no CUDA kernels"):
        ops.narrow_linear(x, weight)
