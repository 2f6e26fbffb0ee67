"""silu_mul and gelu_mul: against float64 on a GPU, and their refusals, which need none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rounding import assert_one_rounding, random_rows
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)
OPS: dict[str, Callable[..., Tensor]] = {"silu_mul": ops.silu_mul, "gelu_mul": ops.gelu_mul}


def gated64(name: str, gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    act = F.silu(gate) if name == "silu_mul" else F.gelu(gate, approximate="tanh")
    return act * up


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [8, 136, 1536, 3072, 14336, 97])
@pytest.mark.parametrize("n_rows", [1, 5, 64])
def test_result_is_the_float64_product_rounded_once(
    n_rows: int, length: int, dtype: torch.dtype, name: str
) -> None:
    gate_up = 3 * random_rows((n_rows, 2 * length), dtype)
    out = torch.full((n_rows, length), torch.nan, dtype=dtype, device="cuda")

    returned = OPS[name](gate_up, out=out)

    assert returned is out
    assert_one_rounding(out, gated64(name, gate_up))


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_large_gates_do_not_overflow(name: str) -> None:
    gates = torch.tensor([-3e38, -1e4, -100.0, -0.0, 0.0, 100.0, 1e4, 3e38], device="cuda")
    gate_up = torch.cat((gates, torch.ones_like(gates)))[None].bfloat16()

    out = OPS[name](gate_up)

    assert torch.equal(out[0, :5], torch.zeros(5, dtype=torch.bfloat16, device="cuda"))
    assert torch.equal(out[0, 5:], gate_up[0, 5:8])


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("stride", [288, 291])
def test_rows_inside_wider_tensors_follow_their_strides(name: str, stride: int) -> None:
    gate_up = random_rows((7, stride), torch.float16)[:, :256]
    memory = torch.full((7, stride), torch.nan, dtype=torch.float16, device="cuda")

    OPS[name](gate_up, out=memory[:, :128])

    assert_one_rounding(memory[:, :128], gated64(name, gate_up))
    assert memory[:, 128:].isnan().all()


@pytest.mark.gpu
def test_t27_rows_beyond_2_to_the_31_elements_are_addressed_in_64_bits() -> None:
    length = 8192
    n_rows = 2**31 // (2 * length) + 2
    if torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GiB of free device memory")
    gate_up = torch.zeros(n_rows, 2 * length, dtype=torch.bfloat16, device="cuda")
    gate_up[-1] = random_rows((2 * length,), torch.bfloat16)

    out = ops.silu_mul(gate_up)

    assert_one_rounding(out[-1], gated64("silu_mul", gate_up[-1]))
    assert not out[-3:-1].any()


@pytest.mark.gpu
def test_no_rows_is_no_work() -> None:
    assert ops.silu_mul(random_rows((0, 32), torch.bfloat16)).shape == (0, 16)


@pytest.mark.parametrize("name", OPS)
def test_bad_arguments_are_refused(name: str) -> None:
    gate_up = torch.zeros(2, 16, dtype=torch.bfloat16)
    with pytest.raises(ops.KernelUnavailableError, match=f"{name}: gate_up is float32"):
        OPS[name](gate_up.float())
    with pytest.raises(ValueError, match=r"gate_up has shape \[2, 16\]; expected \[T=2, 18\]"):
        OPS[name](gate_up, out=torch.zeros(2, 9, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="out is float16; accepted: bfloat16"):
        OPS[name](gate_up, out=torch.zeros(2, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"gate_up of shape .* must be contiguous"):
        OPS[name](torch.zeros(16, 2, dtype=torch.bfloat16).T)
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"gate_up is on the CPU|no CUDA kernels"):
        OPS[name](gate_up)
