"""The products of `batch_invariant` on a GPU, at the shapes of real models: a row gets the same
bits among any number of rows, at any place among them, whatever the other rows hold."""

from __future__ import annotations

import pytest
import torch

from astrai.models.fixed_products import BLOCK_ROWS, CheckedProducts
from astrai.models.linear import Linear

pytestmark = pytest.mark.gpu

# [n_out, n_in] of a layer's products and of the head: SmolLM2-135M, a Qwen3 of 0.6B, a Llama of 8B.
SHAPES = [
    *[(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)],
    *[(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024)],
    *[(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)],
]
COUNTS = [1, 2, 3, 5, 8, 17, 33, 64, 100, 127, 128, 129, 200, 255, 256, 257, 300, 512, 513, 700]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def linear_of(shape: tuple[int, int], dtype: torch.dtype, has_bias: bool = False) -> Linear:
    bias = random(shape[0], dtype=dtype) if has_bias else None
    return Linear(random(*shape, dtype=dtype) * shape[1] ** -0.5, bias)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_gets_the_same_bits_among_any_number_of_rows(shape: tuple[int, int]) -> None:
    linear = linear_of(shape, torch.bfloat16)
    products = CheckedProducts([linear])
    x = random(max(COUNTS), shape[1], dtype=torch.bfloat16)
    expected = torch.cat([products(block, linear.weight) for block in x.split(BLOCK_ROWS)])
    reference = x[:8].double() @ linear.weight.double().T
    assert (expected[:8] - reference).norm() < 0.01 * reference.norm()
    for n_rows in COUNTS:
        out = torch.full((n_rows, shape[0]), float("nan"), dtype=x.dtype, device="cuda")
        assert torch.equal(products(x[:n_rows], linear.weight), expected[:n_rows])
        products(x[:n_rows], linear.weight, None, out)
        assert torch.equal(out, expected[:n_rows])


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] < 40000])
def test_a_row_gets_the_same_bits_at_each_of_256_places(shape: tuple[int, int]) -> None:
    linear = linear_of(shape, torch.bfloat16)
    products = CheckedProducts([linear])
    x = random(BLOCK_ROWS, shape[1], dtype=torch.bfloat16)
    expected = products(x, linear.weight)
    n_off = torch.zeros((), dtype=torch.int64, device="cuda")
    for turn in range(1, BLOCK_ROWS):
        n_off += (products(x.roll(turn, 0), linear.weight).roll(-turn, 0) != expected).sum()
    assert n_off == 0


def test_other_rows_may_hold_anything() -> None:
    linear = linear_of((1024, 3072), torch.bfloat16)
    products = CheckedProducts([linear])
    x = random(100, 3072, dtype=torch.bfloat16)
    expected = products(x, linear.weight)[:7].clone()
    for value in (0.0, float("inf"), float("nan")):
        x[7:] = value
        assert torch.equal(products(x, linear.weight)[:7], expected)
        assert torch.equal(products(x[:7], linear.weight), expected)  # over stale padding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bias_and_float16_are_no_different(dtype: torch.dtype) -> None:
    for has_bias in (False, True):
        linear = linear_of((1152, 896), dtype, has_bias)
        products = CheckedProducts([linear])
        x = random(max(COUNTS), 896, dtype=dtype)
        expected = products(x, linear.weight, linear.bias)
        for n_rows in COUNTS:
            got = products(x[:n_rows], linear.weight, linear.bias)
            assert torch.equal(got, expected[:n_rows])


@pytest.mark.parametrize("shape", [(1024, 3072), (4096, 14336)])
def test_a_captured_product_gives_the_bits_of_a_launched_one(shape: tuple[int, int]) -> None:
    linear = linear_of(shape, torch.bfloat16)
    products = CheckedProducts([linear])
    x = random(40, shape[1], dtype=torch.bfloat16)
    expected = products(x, linear.weight).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = products(x, linear.weight)
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, expected)
