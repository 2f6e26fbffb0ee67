"""Norms, activation and linear layers against plain formulas, compiled and through torch."""

from __future__ import annotations

import pytest
import torch

from astrai import _C
from astrai.models.execution import layers_for
from astrai.models.layers import Layers
from astrai.models.linear import Linear, linear

# float16 has no compiled pass on a CPU, so it covers the torch operations.
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,  # two roundings to 8 bits
    torch.float16: 2e-3,  # two roundings to 11 bits
}


def layers_of(dtype: torch.dtype) -> Layers:
    return layers_for(torch.device("cpu"), dtype)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def exact_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def assert_near(result: torch.Tensor, exact: torch.Tensor) -> None:
    tolerance = TOLERANCE[result.dtype]
    torch.testing.assert_close(result.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (5, 64), (3, 4, 32)])
def test_rms_norm_divides_by_the_root_mean_square(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    assert_near(layers_of(dtype).rms_norm(x, weight, 1e-5), exact_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_takes_heads_that_are_slices(dtype: torch.dtype) -> None:
    x, weight = random(3, 6, 32, dtype=dtype)[:, 1:4], random(32, dtype=dtype, seed=1)
    assert_near(layers_of(dtype).rms_norm(x, weight, 1e-5), exact_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_leaves_the_sum_in_the_residual(dtype: torch.dtype) -> None:
    x, residual = random(5, 64, dtype=dtype), random(5, 64, dtype=dtype, seed=1)
    weight, total = random(64, dtype=dtype, seed=2), x + residual
    normed = layers_of(dtype).add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert_near(normed, exact_norm(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_rows", [1, 7, 40])
def test_the_gate_is_the_first_half(dtype: torch.dtype, n_rows: int) -> None:
    gate_up = random(n_rows, 96, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=1)
    layers = layers_of(dtype)
    assert_near(layers.silu_mul(gate_up), gate * torch.sigmoid(gate) * up)
    gelu = torch.nn.functional.gelu(gate, approximate="tanh")
    assert_near(layers.gelu_mul(gate_up), gelu * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("n_rows", [0, 1, 8, _C.CPU_LINEAR_MAX_ROWS + 1])
def test_linear_is_the_same_product_at_every_number_of_rows(
    dtype: torch.dtype, has_bias: bool, n_rows: int
) -> None:
    x, weight = random(n_rows, 64, dtype=dtype), random(48, 64, dtype=dtype, seed=1) / 8
    bias = random(48, dtype=dtype, seed=2) if has_bias else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert_near(linear(x, weight, bias), exact)
    assert torch.equal(Linear(weight, bias)(x), linear(x, weight, bias))
