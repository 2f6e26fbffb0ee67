"""The CPU operations of `_C` over torch tensors: values, exact invariance, refusals, threads."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from astrai import _C
from reference import assert_close

DTYPES = (torch.float32, torch.bfloat16)
# (N, K): one element, shorter than a vector, odd, the shapes of a small model's layers.
SIZES = ((1, 1), (3, 5), (13, 37), (100, 129), (960, 576), (576, 1536))


@pytest.fixture(autouse=True)
def _two_threads():
    before = _C.cpu_threads()
    _C.cpu_threads(2)
    yield
    _C.cpu_threads(before)


@pytest.fixture(params=_C.cpu_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    isa: str = "",
) -> torch.Tensor:
    out = poisoned(x.shape[0], weight.shape[0], dtype=out_dtype or x.dtype)
    _C.cpu_linear(x, weight, out, bias, isa=isa)
    return out


class TestLinear:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(("n", "k"), SIZES)
    def test_agrees_with_float64_for_every_number_of_rows(self, n, k, dtype, isa):
        weight = (torch.randn(n, k) / k**0.5).to(dtype)
        bias = torch.randn(n).to(dtype)
        for m in range(1, 18):
            x = torch.randn(m, k).to(dtype)
            expected = x.double() @ weight.double().T
            assert_close(linear(x, weight, isa=isa), expected, dtype)
            assert_close(linear(x, weight, bias, isa=isa), expected + bias.double(), dtype)

    @pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("bias_dtype", DTYPES, ids=str)
    def test_bfloat16_weights_take_and_give_float32(self, x_dtype, bias_dtype, isa):
        x = torch.randn(5, 70).to(x_dtype)
        weight = (torch.randn(31, 70) / 8).bfloat16()
        bias = torch.randn(31).to(bias_dtype)
        out = linear(x, weight, bias, torch.float32, isa)
        assert_close(out, x.double() @ weight.double().T + bias.double(), torch.float32)

    def test_bfloat16_out_is_the_rounded_float32_out(self, isa):
        x, weight = torch.randn(7, 99).bfloat16(), torch.randn(45, 99).bfloat16()
        exact = linear(x, weight, out_dtype=torch.float32, isa=isa)
        assert torch.equal(linear(x, weight, isa=isa), exact.bfloat16())

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_a_row_is_the_same_bits_alone_and_in_any_batch(self, dtype, isa):
        x, weight = torch.randn(17, 579).to(dtype), torch.randn(491, 579).to(dtype)
        alone = torch.cat([linear(row[None], weight, isa=isa) for row in x])
        for m in range(1, 18):
            assert torch.equal(linear(x[:m], weight, isa=isa), alone[:m])
            assert torch.equal(linear(x[-m:].contiguous(), weight, isa=isa), alone[-m:])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_the_number_of_threads_changes_no_bit(self, dtype, isa):
        x, weight = torch.randn(3, 576).to(dtype), torch.randn(1537, 576).to(dtype)
        outs = []
        for n_threads in (1, 2, 5):
            _C.cpu_threads(n_threads)
            outs.append(linear(x, weight, isa=isa))
        assert torch.equal(outs[0], outs[1])
        assert torch.equal(outs[0], outs[2])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_any_alignment_is_accepted(self, dtype, isa):
        m, n, k = 4, 33, 65
        x = torch.randn(m * k + 1).to(dtype)[1:].view(m, k)
        weight = torch.randn(n * k + 3).to(dtype)[3:].view(n, k)
        expected = linear(x.clone(), weight.clone(), isa=isa)
        assert torch.equal(linear(x, weight, isa=isa), expected)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_nan_and_infinity_reach_their_own_row_and_column_alone(self, dtype, isa):
        x, weight = torch.randn(6, 40).to(dtype), torch.randn(20, 40).to(dtype)
        clean = linear(x, weight, isa=isa)
        x[2, 39] = torch.nan
        weight[7, 0] = torch.inf
        out = linear(x, weight, isa=isa)
        assert out[2].isnan().all()
        assert not out[[0, 1, 3, 4, 5], 7].isfinite().any()
        rows, cols = [0, 1, 3, 4, 5], [i for i in range(20) if i != 7]
        assert torch.equal(out[rows][:, cols], clean[rows][:, cols])

    @pytest.mark.parametrize("shape", [(0, 8, 4), (3, 0, 4), (0, 0, 0)])
    def test_an_empty_output_is_left_alone(self, shape):
        m, n, k = shape
        out = linear(torch.randn(m, k), torch.randn(n, k))
        assert out.shape == (m, n)

    def test_without_inputs_the_output_is_the_bias(self):
        bias = torch.randn(5)
        out = linear(torch.empty(2, 0), torch.empty(5, 0), bias)
        assert torch.equal(out, bias.expand(2, 5))

    def test_calls_from_several_python_threads_do_not_mix(self):
        weight = torch.randn(960, 576)
        inputs = [torch.randn(i + 1, 576) for i in range(4)]
        expected = [linear(x, weight) for x in inputs]
        wrong: list[int] = []

        def call(i: int) -> None:
            for _ in range(50):
                if not torch.equal(linear(inputs[i], weight), expected[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"x": torch.zeros(2, 9)}, r"weight has shape \[4, 8\]; expected \[N.*, K=9\]"),
            ({"x": torch.zeros(8)}, r"x has shape \[8\]; expected \[M, K\]"),
            ({"out": torch.zeros(2, 5)}, r"out has shape \[2, 5\]; expected \[M=2, N=4\]"),
            ({"bias": torch.zeros(3)}, r"bias has shape \[3\]; expected \[N=4\]"),
            (
                {"weight": torch.zeros(4, 8).half()},
                "weight is float16; accepted: float32, bfloat16",
            ),
            ({"x": torch.zeros(2, 8).bfloat16()}, "x is bfloat16; accepted: float32"),
            ({"out": torch.zeros(2, 4).bfloat16()}, "out is bfloat16; accepted: float32"),
            ({"x": torch.zeros(8, 2).T}, r"x of shape \[2, 8\] has strides \[1, 2\]"),
            ({"weight": torch.zeros(8, 8)[::2]}, r"weight of shape \[4, 8\] has strides \[16, 1\]"),
            ({"isa": "sse9"}, "isa is 'sse9'; accepted are"),
        ],
    )
    def test_a_bad_argument_is_named(self, changed, message):
        arguments = {
            "x": torch.zeros(2, 8),
            "weight": torch.zeros(4, 8),
            "out": torch.zeros(2, 4),
            "bias": torch.zeros(4),
        } | changed
        with pytest.raises(ValueError, match=message):
            _C.cpu_linear(**arguments)


class TestThreads:
    def test_set_and_get(self):
        assert _C.cpu_threads(3) == 3
        assert _C.cpu_threads() == 3

    @pytest.mark.parametrize("n", [0, -1, 257])
    def test_a_number_out_of_range_is_refused(self, n):
        with pytest.raises(ValueError, match=rf"n is {n}; accepted are 1\.\.256"):
            _C.cpu_threads(n)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_a_forked_child_computes_the_same(self):
        x, weight = torch.randn(2, 576), torch.randn(960, 576)
        expected = linear(x, weight)
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(linear(x, weight), expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_instruction_set_that_the_machine_lacks_is_refused():
    x = torch.zeros(1, 1)
    for isa in {"portable", "avx2", "avx512", "avx512bf16"} - set(_C.cpu_isas()):
        with pytest.raises(_C.KernelUnavailableError, match=f"'{isa}' is not available"):
            _C.cpu_linear(x, x, x.clone(), isa=isa)
