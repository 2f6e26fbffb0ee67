"""The policy API on a CUDA device: TorchNativeBackend's gather, automatic choice, rotary."""

from __future__ import annotations

import pytest
import torch
from ragged import make_ragged, on_device

from astrai.extension import apply_rotary_emb, attention, attn_backend
from device_sync import no_device_sync
from reference import assert_close, reference_rotary, rotary_table

pytestmark = pytest.mark.gpu

CASES = {
    "decode_one": ([17], [1]),
    "decode_many": ([5, 1, 33, 16, 8], [1, 1, 1, 1, 1]),
    "prefill": ([70, 10, 130], [70, 10, 130]),
    "mixed": ([12, 30, 1, 64, 20], [1, 30, 1, 5, 1]),
}


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_automatic_choice_matches_the_reference(case, group, dtype):
    batch = on_device(make_ragged(*CASES[case], 2 * group, 2, 64, dtype), "cuda")
    fwd = "decode" if case.startswith("decode") else "prefill"

    out = attention(batch.q, batch.k, batch.v, batch.kv_cache, 1, fwd=fwd)

    assert_close(out.cpu(), batch.expected, dtype)


@pytest.mark.parametrize("head_dim", [24, 96, 128])
def test_torch_native_takes_any_head_size(head_dim):
    batch = on_device(make_ragged(*CASES["mixed"], 6, 2, head_dim, torch.bfloat16), "cuda")

    with attn_backend("torch_native"):
        out = attention(batch.q, batch.k, batch.v, batch.kv_cache, 1, fwd="prefill")

    assert_close(out.cpu(), batch.expected, torch.bfloat16)


def test_a_layer_does_not_wait_for_the_device():
    batch = on_device(make_ragged(*CASES["mixed"]), "cuda")
    attention(batch.q, batch.k, batch.v, batch.kv_cache, 1, fwd="prefill")  # builds the plan

    with no_device_sync():
        attention(batch.q, batch.k, batch.v, batch.kv_cache, 0, fwd="prefill")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7, 4, 64), (2, 5, 3, 32)])
def test_rotation_matches_the_reference(shape, dtype):
    x = torch.randn(shape).to(dtype)
    freqs = rotary_table(500, shape[-1])[torch.randint(0, 500, shape[:-2])]

    out = apply_rotary_emb(x.cuda(), freqs.cuda())

    assert_close(out.cpu(), reference_rotary(x, freqs), dtype)
