"""rms_norm and add_rms_norm: against float64 on a GPU, and their refusals, which need none."""

from __future__ import annotations

import pytest
import torch
from rounding import assert_one_rounding, nan_like, random_rows
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)
# A head, rows of one to many warps, a length off 16 bytes, one that is too long for the registers.
LENGTHS = (8, 64, 96, 128, 256, 576, 1000, 1024, 4096, 5120, 16384, 16392, 97)
EPS = 1e-5


def norm64(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.double()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("n_rows", [1, 3, 133])
def test_rms_norm_is_the_float64_norm_rounded_once(
    n_rows: int, length: int, dtype: torch.dtype
) -> None:
    x, weight = random_rows((n_rows, length), dtype), random_rows((length,), dtype)
    out = nan_like(x)

    returned = ops.rms_norm(x, weight, EPS, out=out)

    assert returned is out
    assert_one_rounding(out, norm64(x, weight))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("n_rows", [1, 3, 133])
def test_t64_the_sum_is_rounded_before_it_is_normalised(
    n_rows: int, length: int, dtype: torch.dtype
) -> None:
    x, residual = random_rows((n_rows, length), dtype), random_rows((n_rows, length), dtype)
    weight, out = random_rows((length,), dtype), nan_like(x)
    expected_sum = (x.float() + residual.float()).to(dtype)

    ops.add_rms_norm(x, residual, weight, EPS, out=out)

    assert torch.equal(residual, expected_sum)
    assert_one_rounding(out, norm64(expected_sum, weight))


@pytest.mark.gpu
@pytest.mark.parametrize("length", [64, 576, 1024, 2048, 4096, 5120, 8192, 12288])
@pytest.mark.parametrize("has_residual", [False, True])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(has_residual: bool, length: int) -> None:
    n_rows = 2100  # many: vectors are dealt to threads in another way than those of few rows
    x, weight = (
        random_rows((n_rows, length), torch.bfloat16),
        random_rows((length,), torch.bfloat16),
    )
    residual = random_rows((n_rows, length), torch.bfloat16)

    def norm(rows: slice) -> Tensor:
        if has_residual:
            return ops.add_rms_norm(x[rows], residual[rows].clone(), weight, EPS)
        return ops.rms_norm(x[rows], weight, EPS)

    together = norm(slice(n_rows))
    for row in (0, 1, n_rows - 1):
        assert torch.equal(norm(slice(row, row + 1))[0], together[row])
    for _ in range(20):
        assert torch.equal(norm(slice(n_rows)), together)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_heads_inside_a_qkv_row_are_normed_in_place_and_their_neighbours_are_left(
    offset: int,
) -> None:
    fused = random_rows((12, 6 * 64 + 16), torch.bfloat16)
    before = fused.clone()
    heads = fused[:, offset : offset + 4 * 64].view(12, 4, 64)
    weight = random_rows((64,), torch.bfloat16)
    expected = norm64(heads, weight)

    ops.rms_norm(heads, weight, EPS, out=heads)

    assert_one_rounding(heads, expected)
    assert torch.equal(fused[:, :offset], before[:, :offset])
    assert torch.equal(fused[:, offset + 256 :], before[:, offset + 256 :])


@pytest.mark.gpu
@pytest.mark.parametrize("stride", [512, 515])
def test_rows_inside_wider_tensors_are_added_by_their_strides(stride: int) -> None:
    memory = random_rows((3, 9, stride), torch.float16)
    x, residual, out = (memory[i, :, :512] for i in range(3))
    weight = random_rows((512,), torch.float16)
    expected_sum = (x.float() + residual.float()).half()
    padding = memory[:, :, 512:].clone()

    ops.add_rms_norm(x, residual, weight, EPS, out=out)

    assert torch.equal(residual, expected_sum)
    assert_one_rounding(out, norm64(expected_sum, weight))
    assert torch.equal(memory[:, :, 512:], padding)


@pytest.mark.gpu
def test_t65_a_row_of_zeros_stays_zero_and_inf_does_not_leave_its_row() -> None:
    x = random_rows((4, 128), torch.bfloat16)
    x[1] = 0
    x[2, 5] = torch.inf
    weight = torch.ones(128, dtype=torch.bfloat16, device="cuda")

    out = ops.rms_norm(x, weight, EPS)

    assert not out[1].any()
    assert out[[0, 1, 3]].isfinite().all()


@pytest.mark.gpu
def test_t27_rows_beyond_2_to_the_31_elements_are_addressed_in_64_bits() -> None:
    length = 8192
    n_rows = 2**31 // length + 2
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB of free device memory")
    x = torch.zeros(n_rows, length, dtype=torch.bfloat16, device="cuda")
    x[-1] = random_rows((length,), torch.bfloat16)
    weight = torch.ones(length, dtype=torch.bfloat16, device="cuda")

    out = ops.rms_norm(x, weight, EPS)

    assert_one_rounding(out[-1], norm64(x[-1], weight))
    assert not out[-3:-1].any()


@pytest.mark.gpu
def test_no_rows_is_no_work() -> None:
    weight = random_rows((64,), torch.bfloat16)
    empty = random_rows((0, 64), torch.bfloat16)
    assert ops.rms_norm(empty, weight, EPS).shape == (0, 64)
    assert ops.add_rms_norm(empty, empty.clone(), weight, EPS).shape == (0, 64)


def test_float32_has_no_kernel() -> None:
    with pytest.raises(ops.KernelUnavailableError, match="x is float32; there are kernels for"):
        ops.rms_norm(torch.zeros(2, 8), torch.zeros(8), EPS)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(9, dtype=torch.bfloat16), r"weight has shape \[9\]; expected \[N=8\]"),
        (torch.zeros(8), "weight is float32; accepted: bfloat16"),
        (torch.zeros(16, dtype=torch.bfloat16)[::2], "weight of shape .* must be contiguous"),
    ],
)
def test_a_weight_that_does_not_fit_is_refused(weight: Tensor, message: str) -> None:
    x = torch.zeros(2, 8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=message):
        ops.rms_norm(x, weight, EPS)
    with pytest.raises(ValueError, match=message):
        ops.add_rms_norm(x, x.clone(), weight, EPS)


def test_a_residual_that_is_x_is_refused() -> None:
    x, weight = torch.zeros(2, 8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="residual is x or out"):
        ops.add_rms_norm(x, x, weight, EPS)


def test_a_negative_eps_is_refused() -> None:
    x, weight = torch.zeros(2, 8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="eps is -1"):
        ops.rms_norm(x, weight, -1.0)


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    x, weight = torch.zeros(2, 8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"x is on the CPU|no CUDA kernels"):
        ops.rms_norm(x, weight, EPS)
