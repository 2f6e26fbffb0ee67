"""FlashAttnBackend over a stand-in for flash-attn that checks every argument: shapes, pages,
availability, strict and automatic selection. What needs no device runs on the CPU."""

from __future__ import annotations

import importlib
import sys

import flash_attn_stand_in as stand_in
import pytest
import torch
from ragged import make_ragged, on_device

from astrai._C import KernelUnavailableError
from astrai.extension import FlashAttnBackend, attention, attn_backend
from astrai.extension.backend import flash, selection
from astrai.extension.backend.base import AttentionCall
from astrai.kvcache import PagePool
from reference import assert_close, reference_attention

BACKEND = FlashAttnBackend()

RAGGED = {
    "decode_one": ([17], [1]),
    "decode_first_token": ([1], [1]),
    "decode_many": ([5, 1, 33, 16, 8], [1, 1, 1, 1, 1]),
    "prefill_many": ([70, 10, 130], [70, 10, 130]),
    "chunks": ([40, 65, 3], [7, 64, 2]),
    "mixed": ([12, 30, 1, 64, 20], [1, 30, 1, 5, 1]),
}


def forget() -> None:
    flash._flash_attn.cache_clear()
    selection._automatic.cache_clear()
    selection._log_fallback.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    """The stand-in as `flash_attn`, on a machine whose GPU is an H200 as far as probes can see."""
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    stand_in.calls.clear()
    forget()
    yield monkeypatch
    forget()


def run(batch, **kwargs):
    return BACKEND.forward(batch.q, batch.k, batch.v, batch.kv_cache, layer_id=1, **kwargs)


def one_call(name: str) -> dict[str, object]:
    assert [call[0] for call in stand_in.calls] == [name]
    return stand_in.calls[0][1]


def call_of(**changes: object) -> AttentionCall:
    call = AttentionCall("decode", 3, 8, 2, 64, torch.bfloat16, "cuda", True, False, False)
    return call._replace(**changes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", RAGGED)
def test_ragged_batches_match_the_reference(installed, case, dtype):
    batch = make_ragged(*RAGGED[case], dtype=dtype)

    out = run(batch, fwd="decode" if case.startswith("decode") else "prefill")

    assert out.shape == batch.q.shape and out.dtype == dtype
    assert_close(out, batch.expected, dtype)
    arguments = one_call("flash_attn_varlen_func")
    assert arguments["causal"] is True and arguments["block_table"] is None


@pytest.mark.parametrize("head_dim", [8, 64, 96, 256])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_group_and_head_sizes_match_the_reference(installed, group, head_dim):
    batch = make_ragged([12, 30, 20], [1, 30, 6], 2 * group, 2, head_dim, torch.bfloat16)

    assert_close(run(batch), batch.expected, torch.bfloat16)


def test_sm_scale_is_passed_on(installed):
    batch = make_ragged([6, 20], [1, 20], dtype=torch.bfloat16)

    out = run(batch, sm_scale=0.5)

    rows = zip(batch.q.split([1, 20]), batch.all_k, batch.all_v, strict=True)
    expected = torch.cat([reference_attention(*one, sm_scale=0.5) for one in rows])
    assert_close(out, expected, torch.bfloat16)
    assert one_call("flash_attn_varlen_func")["softmax_scale"] == 0.5


def test_new_rows_are_written_to_their_slots_of_their_layer_only(installed):
    batch = make_ragged([5, 9], [1, 4], dtype=torch.float16)
    cache = batch.kv_cache
    before = cache.k_buffer.clone()

    run(batch)

    slots = cache.out_cache_loc.long()
    before[1, slots] = batch.k
    assert torch.equal(cache.k_buffer.nan_to_num(nan=7.0), before.nan_to_num(nan=7.0))
    assert torch.equal(cache.v_buffer[1, slots], batch.v)


def test_rows_may_be_slices_of_a_fused_projection(installed):
    batch = make_ragged([12, 30, 20], [1, 1, 6], dtype=torch.bfloat16)
    fused = torch.cat((batch.q, batch.k, batch.v), dim=1)
    batch.q, batch.k, batch.v = fused.split([4, 2, 2], dim=1)

    assert_close(run(batch), batch.expected, torch.bfloat16)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_len", [9, 14])
def test_dense_batches_are_aligned_at_the_last_key(installed, kv_len, is_causal):
    q = torch.randn(2, 9, 6, 16).bfloat16()
    k, v = torch.randn(2, 2, kv_len, 2, 16).bfloat16()

    out = BACKEND.forward(q, k, v, is_causal=is_causal, sm_scale=0.3)

    visible = None if is_causal else torch.ones(9, kv_len, dtype=torch.bool)
    for i in range(2):
        expected = reference_attention(q[i], k[i], v[i], visible, sm_scale=0.3)
        assert_close(out[i], expected, torch.bfloat16)
    one_call("flash_attn_func")


def pool_step(page_size: int, n_tokens: int | None, prompts: list[int], q_lens: list[int]):
    """A pool of random keys and values, and a step of these requests' last tokens."""
    pool = PagePool(2, 2, 16, len(prompts) + 1, 1024, "cpu", torch.bfloat16, page_size, n_tokens)
    pool.k_buffer.normal_()
    pool.v_buffer.normal_()
    rows = []
    for i, n in enumerate(prompts):
        admission = pool.admit([1000 * i + t for t in range(n)])
        assert admission is not None
        rows.append(admission.req_idx)
    starts = [n - q_len for n, q_len in zip(prompts, q_lens, strict=True)]
    return pool, pool.plan_step(rows[::-1], starts[::-1], q_lens[::-1]).kv_cache


POOLS = {"pages of 256": (256, 4096), "pages of 512": (512, 4096), "contiguous": (1, None)}


@pytest.mark.parametrize("pages", POOLS)
@pytest.mark.parametrize(
    ("q_lens", "function"),
    [([1, 1, 1], "flash_attn_with_kvcache"), ([3, 1, 300], "flash_attn_varlen_func")],
)
def test_a_pool_of_fitting_pages_is_read_in_place(installed, pages, q_lens, function):
    _, cache = pool_step(*POOLS[pages], prompts=[3, 257, 700], q_lens=q_lens)
    total = sum(q_lens)
    q, k, v = torch.randn(total, 6, 16), torch.randn(total, 2, 16), torch.randn(total, 2, 16)
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()

    out = BACKEND.forward(q, k, v, cache, 1, fwd="prefill")

    arguments = one_call(function)
    keys = arguments["k_cache" if "k_cache" in arguments else "k"]
    assert keys.data_ptr() == cache.k_buffer[1].data_ptr()
    assert keys.shape[1] == cache.page_size and cache.page_size % 256 == 0
    for i, rows in enumerate(q.split(q_lens[::-1])):
        slots = cache.req_to_token[cache.req_pool_indices[i], : int(cache.seq_lens[i])].long()
        expected = reference_attention(rows, cache.k_buffer[1, slots], cache.v_buffer[1, slots])
        assert_close(out.split(q_lens[::-1])[i], expected, torch.bfloat16)


def test_decode_over_pages_does_not_let_the_library_split_by_the_batch(installed):
    _, cache = pool_step(256, 4096, prompts=[3, 257], q_lens=[1, 1])
    q, k = torch.randn(2, 4, 16).bfloat16(), torch.randn(2, 2, 16).bfloat16()

    BACKEND.forward(q, k, k, cache, fwd="decode")

    assert one_call("flash_attn_with_kvcache")["num_splits"] == 1


def test_stale_table_entries_stay_within_the_pool(installed):
    pool, cache = pool_step(256, 4096, prompts=[3, 700], q_lens=[1, 1])
    pool.table.device[cache.req_pool_indices[1], 256:] = 2**31 - 1  # behind the short request

    q, k = torch.randn(2, 4, 16).bfloat16(), torch.randn(2, 2, 16).bfloat16()
    BACKEND.forward(q, k, k, cache, fwd="decode")

    table = one_call("flash_attn_with_kvcache")["block_table"]
    assert table.shape == (2, 3) and int(table.max()) < 16


def test_the_block_table_is_made_once_a_step(installed):
    _, cache = pool_step(256, 4096, prompts=[3, 700], q_lens=[1, 1])
    q, k = torch.randn(2, 4, 16).bfloat16(), torch.randn(2, 2, 16).bfloat16()

    for layer_id in (0, 1):
        BACKEND.forward(q, k, k, cache, layer_id, fwd="decode")

    first, second = (call[1]["block_table"] for call in stand_in.calls)
    assert first is second


def test_decode_without_a_cache_is_refused(installed):
    q = torch.randn(1, 1, 2, 8).bfloat16()

    with pytest.raises(ValueError, match="without a kv_cache"):
        BACKEND.forward(q, q, q, fwd="decode")


@pytest.mark.parametrize("version", ["2.5.9.post1", "1.0.9", "unknown"])
def test_a_version_without_what_is_needed_is_named(installed, version):
    installed.setattr(stand_in, "__version__", version)

    assert BACKEND.unavailable_reason() == (
        f"flash-attn {version} is too old: install flash-attn>=2.6"
    )


@pytest.mark.parametrize("version", ["2.6.3", "2.10.0", "2.7.4.post1+cu12torch2.5", "3.0.0"])
def test_later_versions_are_taken(installed, version):
    installed.setattr(stand_in, "__version__", version)

    assert BACKEND.unavailable_reason() is None


def test_a_module_without_the_functions_is_named(installed):
    installed.delattr(stand_in, "flash_attn_with_kvcache")

    assert "2.8.3 has no flash_attn_with_kvcache" in BACKEND.unavailable_reason()


@pytest.mark.parametrize(("version", "capability"), [("2.8.3", (7, 5)), ("3.0.0", (8, 9))])
def test_a_device_of_the_wrong_generation_is_named(installed, version, capability):
    installed.setattr(stand_in, "__version__", version)
    installed.setattr(torch.cuda, "get_device_capability", lambda *_: capability)

    assert f"the device has {capability[0]}.{capability[1]}" in BACKEND.unavailable_reason()


def test_without_a_device_the_reason_says_so(installed):
    installed.setattr(torch.cuda, "is_available", lambda: False)

    assert BACKEND.unavailable_reason() == "flash-attn needs a CUDA device and torch sees none"


def test_a_library_that_does_not_load_gives_the_loaders_words(installed):
    def broken(name: str) -> None:
        raise ImportError("undefined symbol: _ZN3c104cuda")

    installed.setattr(importlib, "import_module", broken)

    assert "undefined symbol" in BACKEND.unavailable_reason()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device_type": "cpu"}, "runs on cuda, not on cpu"),
        ({"dtype": torch.float32}, "not torch.float32"),
        ({"head_dim": 20}, "head_dim 20 is not a multiple of 8 up to 256"),
        ({"head_dim": 264}, "head_dim 264"),
        ({"n_heads": 5}, "n_heads 5 is not a multiple of n_kv_heads 2"),
        ({"has_mask": True}, "takes no attn_mask"),
        ({"needs_grad": True}, "no backward over a kv_cache"),
    ],
)
def test_calls_that_the_library_cannot_take_are_refused_when_selected(installed, changes, reason):
    with attn_backend("flash"):
        assert selection.backend_for(call_of()) is attn_backend("flash")
        with pytest.raises(KernelUnavailableError, match=reason):
            selection.backend_for(call_of(**changes))


def test_automatic_choice_takes_flash_when_cuda_cannot(installed, caplog):
    caplog.set_level("INFO", logger=selection.__name__)
    call = call_of(head_dim=48)  # no paged kernel is built for it

    assert selection.backend_for(call).name == "flash"
    assert "attention backend cuda is not used" in caplog.text


def test_automatic_choice_passes_over_flash_with_its_reason(installed, caplog):
    caplog.set_level("INFO", logger=selection.__name__)

    assert selection.backend_for(call_of(dtype=torch.float32)).name == "torch_native"
    assert "attention backend flash is not used: flash-attn takes torch.float16" in caplog.text


def test_dense_training_calls_may_go_to_flash(installed):
    call = call_of(fwd=None, q_rank=4, has_cache=False, needs_grad=True)

    assert selection.backend_for(call).name == "flash"


@pytest.mark.gpu
@pytest.mark.parametrize("case", RAGGED)
def test_the_selected_backend_runs_on_the_device(monkeypatch, case):
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    stand_in.calls.clear()
    forget()
    batch = on_device(make_ragged(*RAGGED[case], dtype=torch.bfloat16), "cuda")

    with torch.no_grad(), attn_backend("flash"):
        out = attention(batch.q, batch.k, batch.v, batch.kv_cache, 1, fwd="prefill")

    forget()
    assert_close(out.cpu(), batch.expected, torch.bfloat16)
    one_call("flash_attn_varlen_func")
