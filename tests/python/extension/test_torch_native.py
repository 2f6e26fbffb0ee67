"""TorchNativeBackend against float64, over ragged batches, group sizes, head sizes and dtypes."""

from __future__ import annotations

import pytest
import torch
from ragged import make_ragged

from astrai.extension import TorchNativeBackend, attention
from astrai.extension.backend import step_plan, torch_native
from astrai.extension.backend.base import AttentionCall
from reference import assert_close, reference_attention

BACKEND = TorchNativeBackend()

RAGGED = {
    "decode_one": ([17], [1]),
    "decode_first_token": ([1], [1]),
    "decode_many": ([5, 1, 33, 16, 8], [1, 1, 1, 1, 1]),
    "decode_equal": ([9, 9, 9], [1, 1, 1]),
    "prefill_one": ([70], [70]),
    "prefill_many": ([70, 10, 130], [70, 10, 130]),
    "chunk": ([40], [7]),
    "chunks": ([40, 65, 3], [7, 64, 2]),
    "mixed": ([12, 30, 1, 64, 20], [1, 30, 1, 5, 1]),
    "page_boundaries": ([15, 16, 17, 31, 32, 33], [1, 16, 2, 1, 16, 33]),
}


@pytest.fixture(params=["kernel", "gather"])
def decode_path(request, monkeypatch):
    """Each way of attending decode rows: the compiled CPU kernel, and SDPA over a gather."""
    if request.param == "gather":
        monkeypatch.setattr(torch_native, "cpu_kernel_runs", lambda q: False)


def run(batch, **kwargs):
    return BACKEND.forward(batch.q, batch.k, batch.v, batch.kv_cache, layer_id=1, **kwargs)


@pytest.mark.parametrize("layout", ["scattered", "contiguous"])
@pytest.mark.parametrize("case", RAGGED)
def test_ragged_batches_match_the_reference(case, layout, decode_path):
    seq_lens, q_lens = RAGGED[case]
    batch = make_ragged(seq_lens, q_lens, layout=layout)

    out = run(batch)

    assert out.shape == batch.q.shape and out.dtype == batch.q.dtype
    assert_close(out, batch.expected, torch.float32)


@pytest.mark.parametrize("head_dim", [16, 24, 32, 64, 96, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_group_and_head_sizes_match_the_reference(group, head_dim, decode_path):
    batch = make_ragged([12, 30, 20], [1, 30, 6], 2 * group, 2, head_dim)

    assert_close(run(batch), batch.expected, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["decode_many", "mixed", "chunks"])
def test_other_dtypes_match_the_reference(case, dtype):
    batch = make_ragged(*RAGGED[case], dtype=dtype)

    out = run(batch)

    assert out.dtype == dtype
    assert_close(out, batch.expected, dtype)


def test_new_rows_are_written_to_their_slots_of_their_layer_only(decode_path):
    batch = make_ragged([5, 9], [1, 4])
    cache = batch.kv_cache
    k_before, v_before = cache.k_buffer.clone(), cache.v_buffer.clone()

    run(batch)

    slots = cache.out_cache_loc.long()
    assert torch.equal(cache.k_buffer[1, slots], batch.k)
    assert torch.equal(cache.v_buffer[1, slots], batch.v)
    k_before[1, slots], v_before[1, slots] = batch.k, batch.v
    assert torch.equal(cache.k_buffer.nan_to_num(nan=7.0), k_before.nan_to_num(nan=7.0))
    assert torch.equal(cache.v_buffer.nan_to_num(nan=7.0), v_before.nan_to_num(nan=7.0))


def test_nan_of_one_request_stays_in_it(decode_path):
    batch = make_ragged([5, 30, 12, 40], [1, 1, 12, 3])
    poisoned = make_ragged([5, 30, 12, 40], [1, 1, 12, 3])
    poisoned.q[1] = float("nan")  # the second request's only row

    clean, out = run(batch), run(poisoned)

    assert torch.isnan(out[1]).all()
    others = [i for i in range(len(out)) if i != 1]
    assert torch.equal(out[others], clean[others])


def test_a_row_alone_equals_the_row_in_a_batch(decode_path):
    batch = make_ragged([33, 7, 64], [1, 1, 1])
    together = run(batch)
    cache = batch.kv_cache

    for i in range(3):
        alone = make_ragged([33, 7, 64], [1, 1, 1])
        single = type(cache)(
            k_buffer=alone.kv_cache.k_buffer,
            v_buffer=alone.kv_cache.v_buffer,
            req_to_token=cache.req_to_token,
            req_pool_indices=cache.req_pool_indices[i : i + 1],
            seq_lens=cache.seq_lens[i : i + 1],
            out_cache_loc=cache.out_cache_loc[i : i + 1],
            max_len=int(cache.seq_lens[i]),
            kv_indptr=torch.tensor([0, int(cache.seq_lens[i])], dtype=torch.int32),
            qo_indptr=torch.tensor([0, 1], dtype=torch.int32),
            q_tile_to_batch=None,
            q_tile_to_index=None,
            decode_o_part=None,
            decode_ml_part=None,
            decode_out=None,
        )
        rows = slice(i, i + 1)
        out = BACKEND.forward(batch.q[rows], batch.k[rows], batch.v[rows], single, 1, fwd="decode")
        assert_close(out, together[rows], torch.float32)


def test_chunks_of_a_prompt_equal_the_whole_prompt(monkeypatch):
    monkeypatch.setattr(step_plan, "TILE_ROWS", 16)  # several tiles a chunk
    whole = make_ragged([100], [100])
    out = run(whole)

    for chunk in (1, 7, 33, 64, 99):
        again = make_ragged([100], [100])
        cache = again.kv_cache
        parts = []
        for begin in range(0, 100, chunk):
            end = min(begin + chunk, 100)
            step = type(cache)(
                k_buffer=cache.k_buffer,
                v_buffer=cache.v_buffer,
                req_to_token=cache.req_to_token,
                req_pool_indices=cache.req_pool_indices,
                seq_lens=torch.tensor([end], dtype=torch.int32),
                out_cache_loc=cache.out_cache_loc[begin:end],
                max_len=end,
                kv_indptr=torch.tensor([0, end], dtype=torch.int32),
                qo_indptr=torch.tensor([0, end - begin], dtype=torch.int32),
                q_tile_to_batch=None,
                q_tile_to_index=None,
                decode_o_part=None,
                decode_ml_part=None,
                decode_out=None,
            )
            rows = slice(begin, end)
            parts.append(BACKEND.forward(again.q[rows], again.k[rows], again.v[rows], step, 1))
        assert_close(torch.cat(parts), out, torch.float32)


def test_lengths_are_read_from_the_tensors_when_the_host_has_none(decode_path):
    batch = make_ragged([12, 30, 20], [1, 30, 6], with_host_lens=False)

    assert_close(run(batch), batch.expected, torch.float32)


def test_the_gather_is_built_once_per_step(monkeypatch):
    batch = make_ragged([12, 30, 20], [1, 1, 1], dtype=torch.float64)
    built = []
    build = step_plan._build_gather
    monkeypatch.setattr(step_plan, "_build_gather", lambda *x: built.append(1) or build(*x))

    for layer_id in (0, 1, 0):
        BACKEND.forward(batch.q, batch.k, batch.v, batch.kv_cache, layer_id)

    assert built == [1]


def test_decode_has_a_gradient_where_one_is_wanted():
    batch = make_ragged([12, 30], [1, 1])
    q = batch.q.clone().requires_grad_()

    BACKEND.forward(q, batch.k, batch.v, batch.kv_cache, 1).sum().backward()

    assert q.grad is not None and q.grad.abs().sum() > 0


def test_rows_may_be_slices_of_a_fused_projection_or_transposed(decode_path):
    batch = make_ragged([12, 30, 20], [1, 1, 6])
    fused = torch.cat((batch.q, batch.k, batch.v), dim=1)
    q, k, v = fused.split([4, 2, 2], dim=1)
    transposed = q.transpose(1, 2).contiguous().transpose(1, 2)

    for rows in (q, transposed):
        again = make_ragged([12, 30, 20], [1, 1, 6])
        out = BACKEND.forward(rows, k, v, again.kv_cache, 1)
        assert_close(out, batch.expected, torch.float32)


def test_the_plan_is_built_once_per_step(monkeypatch):
    batch = make_ragged([12, 30, 20], [1, 30, 6])
    built = []
    build = step_plan._build
    monkeypatch.setattr(step_plan, "_build", lambda *args: built.append(1) or build(*args))

    for layer_id in (0, 1, 0):
        BACKEND.forward(batch.q, batch.k, batch.v, batch.kv_cache, layer_id)

    assert built == [1]


def test_sm_scale_replaces_the_default(decode_path):
    batch = make_ragged([6, 20], [1, 20])

    out = run(batch, sm_scale=0.5)

    per_request = batch.q.split([1, 20])
    expected = torch.cat(
        [
            reference_attention(q, k, v, sm_scale=0.5)
            for q, k, v in zip(per_request, batch.all_k, batch.all_v, strict=True)
        ]
    )
    assert_close(out, expected, torch.float32)


def test_key_mask_hides_keys_and_a_row_without_keys_is_zero():
    batch = make_ragged([12, 30, 20], [1, 30, 6])
    key_mask = torch.rand(3, 33, generator=torch.Generator().manual_seed(1)) < 0.6
    key_mask[1, :4] = False  # the first rows of the second request see nothing

    out = run(batch, attn_mask=key_mask)

    rows = batch.q.split([1, 30, 6])
    expected = []
    for i, (q, k, v) in enumerate(zip(rows, batch.all_k, batch.all_v, strict=True)):
        causal = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        expected.append(reference_attention(q, k, v, causal & key_mask[i, : len(k)]))
    assert torch.equal(out[1:5], torch.zeros_like(out[1:5]))
    assert_close(out, torch.cat(expected), torch.float32)


@pytest.mark.parametrize(
    "mask", [torch.ones(3, 29, dtype=torch.bool), torch.ones(2, 40, dtype=torch.bool)]
)
def test_key_mask_of_another_size_is_refused(mask):
    batch = make_ragged([12, 30, 20], [1, 30, 6])

    with pytest.raises(ValueError, match=r"this step needs \[3, at least 30\]"):
        run(batch, attn_mask=mask)


def test_additive_mask_with_a_cache_is_refused():
    batch = make_ragged([12], [1])

    with pytest.raises(ValueError, match="must be bool"):
        run(batch, attn_mask=torch.zeros(1, 12))


def test_heads_that_do_not_divide_are_refused():
    call = AttentionCall("decode", 3, 5, 2, 64, torch.float32, "cpu", True, False, False)

    assert BACKEND.supports(call) == "n_heads 5 is not a multiple of n_kv_heads 2"


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_len", [9, 14])
def test_dense_path_matches_the_reference(kv_len, is_causal):
    q = torch.randn(2, 9, 6, 16, dtype=torch.float64)
    k, v = torch.randn(2, 2, kv_len, 2, 16, dtype=torch.float64)

    out = BACKEND.forward(q, k, v, is_causal=is_causal)

    visible = None if is_causal else torch.ones(9, kv_len, dtype=torch.bool)
    for i in range(2):
        assert_close(out[i], reference_attention(q[i], k[i], v[i], visible), torch.float64)


@pytest.mark.parametrize("is_additive", [False, True])
def test_dense_mask_and_causal_order_hold_together(is_additive):
    q, k, v = torch.randn(3, 1, 8, 4, 16, dtype=torch.float64)
    keep = torch.rand(8, 8, generator=torch.Generator().manual_seed(2)) < 0.7
    keep.fill_diagonal_(True)
    mask = torch.zeros(8, 8, dtype=torch.float64).masked_fill(~keep, float("-inf"))

    out = BACKEND.forward(q, k, v, attn_mask=mask if is_additive else keep, is_causal=True)

    expected = reference_attention(q[0], k[0], v[0], keep.tril())
    assert_close(out[0], expected, torch.float64)


def test_dense_path_has_gradients():
    shape = (1, 4, 2, 8)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert torch.autograd.gradcheck(lambda *x: BACKEND.forward(*x, is_causal=True), (q, k, v))


def test_decode_without_a_cache_is_refused():
    q = torch.randn(1, 1, 2, 8)

    with pytest.raises(ValueError, match="without a kv_cache"):
        BACKEND.forward(q, q, q, fwd="decode")


@pytest.mark.parametrize("case", RAGGED)
def test_keys_and_values_that_are_written_already_are_not_asked_for(case, decode_path):
    seq_lens, q_lens = RAGGED[case]
    batch = make_ragged(seq_lens, q_lens)
    expected = run(batch)  # writes them

    out = attention(batch.q, None, None, batch.kv_cache, layer_id=1)

    assert torch.equal(out, expected)


def test_none_for_keys_needs_a_cache_that_holds_them():
    batch = make_ragged([5], [1])

    with pytest.raises(ValueError, match="only together, with a kv_cache"):
        attention(batch.q[None], None, None)
    with pytest.raises(ValueError, match="only together, with a kv_cache"):
        attention(batch.q, batch.k, None, batch.kv_cache)
