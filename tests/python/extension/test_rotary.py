"""apply_rotary_emb against float64, its partial form, its gradients, and its refusals."""

from __future__ import annotations

import pytest
import torch

from astrai.extension import apply_rotary_emb
from reference import TOLERANCES, assert_close, reference_rotary, rotary_table


@pytest.mark.parametrize("has_grad", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("shape", [(7, 4, 32), (1, 9, 64), (2, 5, 3, 16)])
def test_rotation_matches_the_reference(shape, dtype, has_grad):
    x = torch.randn(shape).to(dtype)
    positions = torch.randint(0, 500, shape[:-2])
    freqs = rotary_table(500, shape[-1])[positions]

    with torch.set_grad_enabled(has_grad):
        out = apply_rotary_emb(x, freqs)

    assert out.shape == x.shape and out.dtype == dtype
    assert_close(out, reference_rotary(x, freqs), dtype)


@pytest.mark.parametrize("has_grad", [False, True])
def test_a_narrow_table_rotates_the_first_dimensions_only(has_grad):
    x = torch.randn(6, 2, 64)
    freqs = rotary_table(6, 16)

    with torch.set_grad_enabled(has_grad):
        out = apply_rotary_emb(x, freqs)

    assert torch.equal(out[..., 16:], x[..., 16:])
    assert_close(out, reference_rotary(x, freqs), torch.float32)


def test_one_table_serves_a_whole_batch():
    x = torch.randn(3, 5, 2, 16)
    freqs = rotary_table(5, 16)

    out = apply_rotary_emb(x, freqs.unsqueeze(0))

    assert_close(out, reference_rotary(x, freqs.expand(3, -1, -1, -1)), torch.float32)


@pytest.mark.parametrize("has_grad", [False, True])
def test_x_is_not_modified_and_may_be_a_slice_of_a_fused_projection(has_grad):
    fused = torch.randn(4, 3 * 32)
    x = fused[:, 32:64].unflatten(1, (2, 16))
    before = fused.clone()

    with torch.set_grad_enabled(has_grad):
        out = apply_rotary_emb(x, rotary_table(4, 16))

    assert torch.equal(fused, before)
    assert_close(
        out,
        reference_rotary(before[:, 32:64].unflatten(1, (2, 16)), rotary_table(4, 16)),
        torch.float32,
    )


def test_gradients_flow_to_x():
    x = torch.randn(3, 2, 8, dtype=torch.float64, requires_grad=True)
    freqs = rotary_table(3, 6)

    assert torch.autograd.gradcheck(lambda x: apply_rotary_emb(x, freqs), (x,))


@pytest.mark.parametrize(
    ("x_shape", "freqs_shape"),
    [((4, 2, 16), (4, 9, 2)), ((4, 2, 16), (4, 8, 3)), ((1, 4, 2, 16), (4, 8, 2))],
)
def test_shapes_that_do_not_fit_are_refused(x_shape, freqs_shape):
    with pytest.raises(ValueError, match="apply_rotary_emb: x is"):
        apply_rotary_emb(torch.zeros(x_shape), torch.zeros(freqs_shape))
