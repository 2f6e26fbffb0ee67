"""The policy API on a CUDA device: TorchNativeBackend's gather, automatic choice, rotary."""

from __future__ import annotations

import pytest
import torch
from ragged import make_ragged, on_device

from astrai.extension import apply_rotary_emb, attention, attn_backend
from astrai.kvcache import PagePool
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


@pytest.fixture
def filled_pool():
    """A pool of random keys and values, and requests of these lengths in it."""
    lens = [700, 33, 1200, 1, 64, 900]
    pool = PagePool(1, 2, 64, 8, 2048, "cuda", torch.bfloat16, 16, 16 * 256, n_heads=6)
    pool.k_buffer.normal_()
    pool.v_buffer.normal_()
    rows = [pool.admit([100 * i + j for j in range(n)]).req_idx for i, n in enumerate(lens)]
    return pool, rows, lens


def test_a_row_has_the_same_bits_in_a_decode_step_and_in_a_mixed_one(filled_pool):
    pool, rows, lens = filled_pool
    starts, q_lens = [n - 1 for n in lens[:3]], [1, 1, 1]
    mixed = pool.plan_step(rows, [*starts, 0, 0, 600], [*q_lens, 1, 64, 300], n_decode=3)
    q, k, v = (
        torch.randn(368, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (6, 2, 2)
    )

    with attn_backend("cuda"):
        together = attention(q, k, v, mixed.kv_cache, fwd="prefill")
        for i in range(3):
            alone = pool.plan_step(rows[i : i + 1], starts[i : i + 1], [1], n_decode=1)
            new = slice(i, i + 1)
            out = attention(q[new], k[new], v[new], alone.kv_cache, fwd="decode")
            assert torch.equal(out, together[new])
    assert not together.isnan().any()


def test_a_prompts_last_token_has_the_same_bits_alone_and_behind_the_others(filled_pool):
    pool, rows, lens = filled_pool
    whole = pool.plan_step(rows[:1], [0], [lens[0]])
    last = pool.plan_step(rows[:1], [lens[0] - 1], [1], n_decode=0)
    q, k, v = (
        torch.randn(lens[0], heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (6, 2, 2)
    )

    with attn_backend("cuda"):
        at_once = attention(q, k, v, whole.kv_cache, fwd="prefill")
        alone = attention(q[-1:], k[-1:], v[-1:], last.kv_cache, fwd="prefill")

    assert torch.equal(alone[0], at_once[-1])


def long_step(splits_prefill):
    """A decoding request and chunks of 16 and 90 tokens, the first behind 20000 cached ones."""
    sizes = (4, 20480, "cuda", torch.bfloat16, 16, 16 * 2000)
    pool = PagePool(1, 2, 64, *sizes, n_heads=6, splits_prefill=splits_prefill)
    generator = torch.Generator("cuda").manual_seed(0)
    pool.k_buffer.normal_(generator=generator)
    pool.v_buffer.normal_(generator=generator)
    lens, starts = [700, 20016, 90], [699, 20000, 0]
    rows = [pool.admit([30000 * i + j for j in range(n)]).req_idx for i, n in enumerate(lens)]
    q_lens = [n - start for n, start in zip(lens, starts, strict=True)]
    shapes = [(sum(q_lens), heads, 64) for heads in (6, 2, 2)]
    new = [torch.randn(*s, device="cuda", generator=generator).bfloat16() for s in shapes]
    return pool, rows, starts, q_lens, new


def test_keys_of_few_prompt_rows_are_split_where_the_pool_has_room_for_it():
    results = {}
    for splits_prefill in (True, False):
        pool, rows, starts, q_lens, (q, k, v) = long_step(splits_prefill)
        cache = pool.plan_step(rows, starts, q_lens, n_decode=1).kv_cache
        assert (cache.prefill_workspace is not None) == splits_prefill
        if splits_prefill:
            cache.prefill_workspace.fill_(float("nan"))
        with attn_backend("cuda"):
            results[splits_prefill] = attention(q, k, v, cache, fwd="prefill")
        if splits_prefill:
            assert not cache.prefill_workspace.isnan().all()
    with attn_backend("torch_native"):
        expected = attention(q, k, v, cache, fwd="prefill")

    split, whole = results[True], results[False]
    assert not split.isnan().any()
    assert not torch.equal(split[1:17], whole[1:17])  # else this test has split nothing
    assert torch.equal(split[:1], whole[:1]) and torch.equal(split[17:], whole[17:])
    for out in results.values():
        assert (out.double() - expected.double()).norm() < 6e-3 * expected.double().norm()


def test_without_splits_a_row_behind_a_long_context_has_the_same_bits_alone():
    pool, rows, starts, q_lens, (q, k, v) = long_step(splits_prefill=False)
    together = pool.plan_step(rows, starts, q_lens, n_decode=1)
    alone = pool.plan_step(rows[1:2], [20015], [1], n_decode=0)

    with attn_backend("cuda"):
        at_once = attention(q, k, v, together.kv_cache, fwd="prefill")
        last = attention(q[16:17], k[16:17], v[16:17], alone.kv_cache, fwd="prefill")

    assert torch.equal(last[0], at_once[16])


@pytest.mark.parametrize("start", [0, 20000])
def test_a_mixed_layer_does_not_wait_for_the_device(start):
    pool, rows, _, _, _ = long_step(splits_prefill=True)
    mixed = pool.plan_step(rows[:2], [699, start], [1, 16], n_decode=1)
    q, k, v = (
        torch.randn(17, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (6, 2, 2)
    )

    with attn_backend("cuda"), no_device_sync():
        attention(q, k, v, mixed.kv_cache, fwd="prefill")


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
