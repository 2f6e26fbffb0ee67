"""skinny_linear on a GPU: against float64, and the bits of the operations it joins; refusals."""

from __future__ import annotations

import pytest
import torch
from rounding import ROUNDING, random_rows
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)
EPS = 1e-6
# (N, K): whole tiles and rests of them, few and many steps, rows that four or eight warps share
SHAPES = [
    (4096, 1024),
    (1024, 3072),
    (40, 8),
    (8, 40),
    (1000, 1032),
    (6, 2056),
    (17, 4096),
    (130, 14336),
]


def random_weight(n: int, k: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(n, k, device="cuda") / k**0.5).to(dtype)


def nan(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device="cuda")


def some_rows(k: int) -> list[int]:
    return sorted({1, 2, min(8, most(k)), min(9, most(k)), most(k)})


def most(k: int) -> int:
    return _C.skinny_linear_max_rows(k)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_is_the_float64_one_rounded_once(n: int, k: int, dtype: torch.dtype) -> None:
    weight, bias = random_weight(n, k, dtype), random_rows((n,), dtype)
    for n_rows in some_rows(k):
        x = random_rows((n_rows, k), dtype)
        for given in (None, bias):
            out = ops.skinny_linear(x, weight, given, out=nan(n_rows, n, dtype=dtype))
            expected = x.double() @ weight.double().T
            if given is not None:
                expected += given.double()
            sums = x.double().abs() @ weight.double().abs().T  # what float32 sums may lose
            allowed = expected.abs() * ROUNDING[dtype] * 1.01 + sums * 2.0**-20
            assert torch.all((out.double() - expected).abs() <= allowed)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_joined_operations_give_the_bits_of_single_ones(n: int, k: int, dtype: torch.dtype) -> None:
    n -= n % 2
    weight, norm = random_weight(n, k, dtype), random_rows((k,), dtype)
    for n_rows in some_rows(k):
        x, residual = random_rows((n_rows, k), dtype), random_rows((n_rows, n), dtype)
        normed = ops.rms_norm(x, norm, EPS)
        product = ops.skinny_linear(normed, weight)
        options = {"norm_weight": norm, "eps": EPS}

        assert torch.equal(ops.skinny_linear(x, weight, **options), product)
        gated = nan(n_rows, n // 2, dtype=dtype)
        ops.skinny_linear(x, weight, **options, output="silu_mul", out=gated)
        assert torch.equal(gated, ops.silu_mul(product))
        expected = residual + product
        ops.skinny_linear(x, weight, **options, output="add", out=residual)
        assert torch.equal(residual, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1024, 2048])
def test_a_row_does_not_depend_on_the_others(k: int) -> None:
    weight, x = random_weight(264, k, torch.bfloat16), random_rows((most(k), k), torch.bfloat16)
    together = ops.skinny_linear(x, weight)
    x[1::2] = torch.nan
    for n_rows in range(1, len(x) + 1):
        some = ops.skinny_linear(x[:n_rows], weight)
        assert torch.equal(some[::2], together[:n_rows:2])


@pytest.mark.gpu
def test_rows_inside_wider_tensors_follow_their_strides() -> None:
    x = random_rows((5, 1104), torch.float16)[:, 8:1032]
    weight = random_weight(200, 1040, torch.float16)[:, :1024]
    memory = nan(5, 203, dtype=torch.float16)

    ops.skinny_linear(x, weight, out=memory[:, 1:201])

    assert torch.equal(memory[:, 1:201], ops.skinny_linear(x.contiguous(), weight.contiguous()))
    assert memory[:, [0, 201, 202]].isnan().all()


@pytest.mark.gpu
def test_no_rows_is_no_work() -> None:
    weight = random_weight(24, 64, torch.bfloat16)
    assert ops.skinny_linear(random_rows((0, 64), torch.bfloat16), weight).shape == (0, 24)


def test_the_rows_that_fit_fall_with_their_length() -> None:
    assert [most(k) for k in (-8, 0, 8, 1024, 2048)] == [0, 0, 16, 16, 16]
    assert 1 <= most(14336) <= most(4096) <= 16 and most(10**9) == 0


def test_bad_arguments_are_refused() -> None:
    x, weight = torch.zeros(2, 16, dtype=torch.bfloat16), torch.zeros(6, 16, dtype=torch.bfloat16)
    with pytest.raises(ops.KernelUnavailableError, match="x is float32"):
        ops.skinny_linear(x.float(), weight.float())
    with pytest.raises(ValueError, match=r"weight has shape \[6, 16\]"):
        ops.skinny_linear(x[:, :8].contiguous(), weight)
    with pytest.raises(ValueError, match="at most 16 rows of this length"):
        ops.skinny_linear(x.new_zeros(17, 16), weight)
    with pytest.raises(ValueError, match="multiples of 8"):
        ops.skinny_linear(x.new_zeros(2, 12), weight.new_zeros(6, 12))
    with pytest.raises(ValueError, match="gates and ups"):
        ops.skinny_linear(x, weight[:5], output="silu_mul")
    with pytest.raises(ValueError, match="needs out"):
        ops.skinny_linear(x, weight, output="add")
    with pytest.raises(ValueError, match="output is 'gelu'"):
        ops.skinny_linear(x, weight, output="gelu", out=x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out is x"):
        square = torch.zeros(16, 16, dtype=torch.bfloat16)
        ops.skinny_linear(x, square, out=x)
    with pytest.raises(ValueError, match="norm_weight"):
        ops.skinny_linear(x, weight, norm_weight=weight[0, :8])
    with pytest.raises(ValueError, match="eps is -1"):
        ops.skinny_linear(x, weight, norm_weight=weight[0], eps=-1)
    with pytest.raises(ValueError, match="bias"):
        ops.skinny_linear(x, weight, weight[0])
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"on the CPU|no CUDA kernels"):
        ops.skinny_linear(x, weight)
