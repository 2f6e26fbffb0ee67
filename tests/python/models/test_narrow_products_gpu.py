"""Which products of a model on a GPU are our own kernel's, and that they are right either way."""

from __future__ import annotations

import pytest
import torch

from astrai.extension import ops
from astrai.models.layers_cuda import CudaLayers
from astrai.models.linear import Linear, linear
from astrai.models.narrow_products import narrow_gate, narrow_product
from astrai.models.workspace import Workspace

pytestmark = pytest.mark.gpu


def needs_hopper() -> None:
    reason = ops.unavailable_reason("narrow_linear", torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)


def random(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") / shape[-1] ** 0.5).bfloat16()


@pytest.mark.parametrize("n_rows", [1, 16, 17, 64, 128, 129, 192, 193, 256, 257, 300])
@pytest.mark.parametrize(("n_out", "n_in"), [(1024, 3072), (4096, 1024), (1030, 3072)])
def test_a_product_is_the_float64_one(n_rows: int, n_out: int, n_in: int) -> None:
    x, weight, bias = random(n_rows, n_in), random(n_out, n_in), random(n_out)
    expected = x.double() @ weight.double().T
    for given, exact in ((None, expected), (bias, expected + bias.double())):
        out = torch.full((n_rows, n_out), torch.nan, dtype=x.dtype, device="cuda")
        assert linear(x, weight, given, out) is out
        assert (out.double() - exact).norm() <= 4e-3 * exact.norm()


def test_tens_of_long_rows_are_our_kernels() -> None:
    needs_hopper()
    x, weight = random(64, 3072), random(1024, 3072)

    assert torch.equal(linear(x, weight), ops.narrow_linear(x, weight))

    assert narrow_product(x[:16], weight, None, None) is None
    assert narrow_product(random(300, 3072), weight, None, None) is None
    assert narrow_product(random(257, 3072), weight, None, None) is None
    assert narrow_product(random(64, 512), random(8192, 512), None, None) is None
    assert narrow_product(x.float(), weight.float(), None, None) is None
    assert narrow_product(x, random(1030, 3072), None, None) is None
    assert narrow_product(random(65, 3080)[:, 4:3076], weight, None, None) is None


def test_gates_are_joined_with_their_product() -> None:
    needs_hopper()
    layers, x, gate_up = CudaLayers(), random(64, 1024), Linear(random(6144, 1024))
    expected = ops.narrow_linear(x, gate_up.weight, output="silu_mul")

    assert torch.equal(layers.gate_linear(x, gate_up, layers.silu_mul, Workspace()), expected)

    gelu = layers.gate_linear(x, gate_up, layers.gelu_mul, Workspace())
    assert torch.equal(gelu, ops.gelu_mul(linear(x, gate_up.weight)))
    assert narrow_gate(x[:16], gate_up.weight, None, None) is None
