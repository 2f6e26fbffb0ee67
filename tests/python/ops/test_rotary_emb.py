"""rotary_emb: the kernel against float64 on a GPU, and its refusals, which need none."""

from __future__ import annotations

import pytest
import torch
from rotary_reference import rotary_table, rotate
from torch import Tensor

from astrai import _C
from astrai.extension import ops

HEAD_DIMS = (32, 64, 96, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)

# One rounding of the result to 8 or 11 bits: at most 2^-8 or 2^-11 of the value, reached just above
# a power of two.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def assert_one_rounding(actual: Tensor, expected: Tensor) -> None:
    """Every element is within one rounding of the float64 value (plus float32 cancellation)."""
    error = (actual.double() - expected).abs()
    allowed = expected.abs() * ROUNDING[actual.dtype] * 1.01 + 1e-5
    assert torch.all(error <= allowed), f"worst excess {(error - allowed).max().item():.3g}"


def inputs(n_tokens: int, n_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(n_tokens, n_heads, head_dim, device="cuda", generator=generator).to(dtype)
    positions = torch.arange(n_tokens, device="cuda") * 7
    return x, rotary_table(positions, head_dim)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("n_tokens", "n_heads"), [(1, 1), (1, 9), (5, 3), (33, 32), (700, 4)])
def test_result_is_the_float64_rotation_rounded_once(
    n_tokens: int, n_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    x, freqs = inputs(n_tokens, n_heads, head_dim, dtype)

    out = ops.rotary_emb(x, freqs)

    assert_one_rounding(out, rotate(x, freqs))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_in_place_gives_the_same_bits_as_out_of_place(head_dim: int) -> None:
    x, freqs = inputs(40, 5, head_dim, torch.bfloat16)
    expected = ops.rotary_emb(x, freqs)

    returned = ops.rotary_emb(x, freqs, out=x)

    assert returned is x
    assert torch.equal(x, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 2, 8])
def test_t44_rows_inside_a_wider_tensor_are_rotated_and_their_neighbours_are_left(
    offset: int,
) -> None:
    # q is a slice of a fused qkv row; an odd offset takes the path without vectors.
    fused = torch.randn(12, 6 * 64 + 16, device="cuda").to(torch.bfloat16)
    before = fused.clone()
    q = fused[:, offset : offset + 4 * 64].view(12, 4, 64)
    freqs = rotary_table(torch.arange(12, device="cuda"), 64)
    expected = rotate(q, freqs)

    ops.rotary_emb(q, freqs, out=q)

    assert_one_rounding(q, expected)
    assert torch.equal(fused[:, :offset], before[:, :offset])
    assert torch.equal(fused[:, offset + 256 :], before[:, offset + 256 :])


@pytest.mark.gpu
def test_batched_layouts_give_the_same_bits_as_the_packed_one() -> None:
    x, freqs = inputs(30, 4, 64, torch.bfloat16)
    expected = ops.rotary_emb(x, freqs)
    batched = x.view(5, 6, 4, 64)

    assert torch.equal(ops.rotary_emb(batched, freqs).view_as(expected), expected)
    assert torch.equal(ops.rotary_emb(batched, freqs.view(5, 6, 32, 2)).view_as(expected), expected)
    heads_first = batched.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(ops.rotary_emb(heads_first, freqs).reshape_as(expected), expected)


@pytest.mark.gpu
def test_one_table_can_serve_every_batch_entry_by_a_stride_of_zero() -> None:
    x, freqs = inputs(12, 2, 64, torch.bfloat16)
    table = freqs[:4]
    expanded = table.expand(3, 4, 32, 2)

    out = ops.rotary_emb(x.view(3, 4, 2, 64), expanded)

    assert torch.equal(out.view(12, 2, 64), ops.rotary_emb(x, table.repeat(3, 1, 1)))


@pytest.mark.gpu
def test_a_table_off_16_bytes_is_read_without_vectors() -> None:
    x, freqs = inputs(9, 2, 32, torch.float16)
    padded = torch.empty(freqs.numel() + 1, device="cuda")
    shifted = padded[1:].view_as(freqs).copy_(freqs)

    assert torch.equal(ops.rotary_emb(x, shifted), ops.rotary_emb(x, freqs))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n_heads", "head_dim"), [(1, 256), (3, 64), (9, 64), (12, 96), (13, 32), (41, 128)]
)
def test_many_tokens_give_the_bits_of_a_few(n_heads: int, head_dim: int) -> None:
    n_tokens = 2**19 // (n_heads * head_dim // 8) + 5  # enough for runs of several heads
    x = torch.randn(n_tokens, n_heads, head_dim, device="cuda").bfloat16()
    freqs = rotary_table(torch.arange(n_tokens, device="cuda"), head_dim // 4 * 2)

    out = ops.rotary_emb(x, freqs, out=torch.full_like(x, torch.nan))

    for first in (0, n_tokens // 2, n_tokens - 16):
        few = slice(first, first + 16)
        assert torch.equal(ops.rotary_emb(x[few], freqs[few]), out[few])


@pytest.mark.gpu
def test_no_tokens_is_no_work() -> None:
    x, freqs = inputs(3, 2, 64, torch.bfloat16)

    assert ops.rotary_emb(x[:0], freqs[:0]).shape == (0, 2, 64)


@pytest.mark.gpu
def test_runs_on_the_current_stream_and_inside_a_captured_graph() -> None:
    x, freqs = inputs(8, 4, 64, torch.bfloat16)
    out = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.rotary_emb(x, freqs, out=out)
    assert not out.any(), "a captured launch must not run at once"

    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()

    assert_one_rounding(out, rotate(x, freqs))


@pytest.mark.gpu
def test_a_head_dim_that_was_not_compiled_is_refused_by_name() -> None:
    x = torch.zeros(2, 2, 48, dtype=torch.bfloat16, device="cuda")
    freqs = torch.zeros(2, 24, 2, device="cuda")
    with pytest.raises(ops.KernelUnavailableError, match=r"bfloat16 with head_dim 48; this build"):
        ops.rotary_emb(x, freqs)


def test_float32_has_no_kernel() -> None:
    x = torch.zeros(2, 2, 64)
    with pytest.raises(ops.KernelUnavailableError, match="x is float32; there are kernels for"):
        ops.rotary_emb(x, torch.zeros(2, 32, 2))


@pytest.mark.parametrize(
    ("freqs", "message"),
    [
        (torch.zeros(3, 32, 2), r"freqs has shape \[3, 32, 2\]; expected \[2, 32, 2\]"),
        (torch.zeros(2, 32), r"freqs has shape \[2, 32\]; expected \[2, 32, 2\]"),
        (torch.zeros(2, 32, 2, dtype=torch.bfloat16), "freqs is bfloat16; accepted: float32"),
        (torch.zeros(2, 2, 32).transpose(1, 2), "must be contiguous"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(freqs: Tensor, message: str) -> None:
    x = torch.zeros(2, 4, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=message):
        ops.rotary_emb(x, freqs)


def test_an_out_that_overlaps_x_by_another_layout_is_refused() -> None:
    memory = torch.zeros(1024, dtype=torch.bfloat16)
    x = memory[:256].view(2, 2, 64)
    out = memory.as_strided((2, 2, 64), (256, 64, 1))
    with pytest.raises(ValueError, match="out starts where x starts but has other strides"):
        ops.rotary_emb(x, torch.zeros(2, 32, 2), out=out)


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    x = torch.zeros(2, 2, 64, dtype=torch.bfloat16)
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"x is on the CPU|no CUDA kernels"):
        ops.rotary_emb(x, torch.zeros(2, 32, 2))
