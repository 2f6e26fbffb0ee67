"""Sliding windows and soft caps: the values, and who says that it does not compute them."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from ragged import make_ragged

from astrai._C import KernelUnavailableError
from astrai.extension import (
    AttentionBackend,
    FlashAttnBackend,
    TorchNativeBackend,
    attention,
    attn_backend,
)
from astrai.extension.backend import step_plan, torch_native
from astrai.extension.backend.base import AttentionCall
from astrai.extension.backend.selection import backend_for

CASES = {
    "decode": ([40, 3, 17], [1, 1, 1]),
    "decode_one": ([40], [1]),
    "first_chunk": ([30], [30]),
    "later_chunk": ([30], [7]),
    "mixed": ([40, 25, 9, 30], [1, 25, 1, 6]),
}


def plain_attention(q, k, v, window, soft_cap):
    """One request in float64, straight from the definitions. Shapes as `reference_attention`."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for row in range(len(q)):
        position = len(k) - len(q) + row
        keys = slice(0 if window is None else max(0, position - window + 1), position + 1)
        for head in range(q.shape[1]):
            scores = k[keys, head // group] @ q[row, head] * q.shape[-1] ** -0.5
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            out[row, head] = scores.softmax(0) @ v[keys, head // group]
    return out


@pytest.mark.parametrize("path", ["kernel", "gather"])
@pytest.mark.parametrize(("window", "soft_cap"), [(8, None), (None, 0.7), (8, 0.7), (1, None)])
@pytest.mark.parametrize("layout", ["scattered", "contiguous"])
@pytest.mark.parametrize("case", CASES)
def test_a_row_sees_its_window_under_its_cap(case, layout, window, soft_cap, path, monkeypatch):
    if path == "gather":
        monkeypatch.setattr(torch_native, "cpu_kernel_runs", lambda q: False)
    monkeypatch.setattr(step_plan, "TILE_ROWS", 10)  # several tiles, each with a window of its own
    seq_lens, q_lens = CASES[case]
    batch = make_ragged(seq_lens, q_lens)

    out = attention(batch.q, batch.k, batch.v, batch.kv_cache, 1, window=window, soft_cap=soft_cap)

    rows = batch.q.split(q_lens)
    expected = torch.cat(
        [
            plain_attention(q, batch.all_k[i], batch.all_v[i], window, soft_cap)
            for i, q in enumerate(rows)
        ]
    )
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_layers_of_both_kinds_share_a_step():
    batch = make_ragged([40, 30], [1, 6])
    outs = [
        attention(batch.q, batch.k, batch.v, batch.kv_cache, 1, window=window)
        for window in (8, None, 8, None)
    ]
    assert torch.equal(outs[0], outs[2])
    assert torch.equal(outs[1], outs[3])
    assert not torch.allclose(outs[0], outs[1])


@pytest.mark.parametrize("q_len", [20, 7])
@pytest.mark.parametrize(("window", "soft_cap"), [(8, None), (None, 0.7), (8, 0.7), (99, None)])
def test_dense_rows_see_the_same(window, soft_cap, q_len):
    q, k = torch.randn(1, q_len, 4, 16), torch.randn(1, 20, 2, 16)
    v = torch.randn(1, 20, 2, 16)
    out = attention(q, k, v, is_causal=True, window=window, soft_cap=soft_cap)
    expected = plain_attention(q[0], k[0], v[0], window, soft_cap)
    torch.testing.assert_close(out[0].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("option", [{"window": 8}, {"soft_cap": 0.7}])
def test_gradients_flow_through_both(option):
    q, k, v = (torch.randn(1, 20, 2, 16, requires_grad=True) for _ in range(3))
    attention(q, k, v, is_causal=True, **option).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


class PlainBackend(AttentionBackend):
    """One that was written before there were windows."""

    name: ClassVar[str] = "plain"

    def unavailable_reason(self):
        return None

    def supports(self, call):
        return None

    def fwd_prefill(
        self,
        q,
        k,
        v,
        kv_cache,
        layer_id=0,
        attn_mask=None,
        is_causal=False,
        sm_scale=None,
    ):
        return torch.zeros_like(q)


@pytest.mark.parametrize("option", [{"window": 8}, {"soft_cap": 0.7}])
def test_a_backend_without_an_option_is_refused_by_its_name(option):
    batch = make_ragged([20], [20])
    args = (batch.q, batch.k, batch.v, batch.kv_cache, 1)
    (name,) = option
    with attn_backend(PlainBackend):
        attention(*args)
        with pytest.raises(KernelUnavailableError, match=f"'plain'.*does not compute {name}"):
            attention(*args, **option)


def call_with(**options) -> AttentionCall:
    shape = ("decode", 3, 4, 2, 64, torch.float32, "cpu", True, False, False)
    return AttentionCall(*shape, **options)


def test_automatic_choice_passes_over_backends_that_lack_one():
    assert isinstance(backend_for(call_with(window=8, soft_cap=0.7)), TorchNativeBackend)
    assert not FlashAttnBackend.options


def test_a_key_mask_beside_a_window_is_refused():
    call = call_with(window=8)._replace(has_mask=True)
    with pytest.raises(KernelUnavailableError, match="attn_mask or window"):
        backend_for(call)


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"window": -3}, {"soft_cap": 0.0}, {"soft_cap": float("nan")}]
)
def test_a_wrong_option_is_an_error_that_names_it(options):
    (name,) = options
    q = torch.randn(1, 4, 2, 16)
    with pytest.raises(ValueError, match=name):
        attention(q, q, q, is_causal=True, **options)


def test_a_window_without_an_order_is_an_error():
    q = torch.randn(1, 4, 2, 16)
    with pytest.raises(ValueError, match=r"window.*causal"):
        attention(q, q, q, window=2)
