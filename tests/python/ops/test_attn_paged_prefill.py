"""attn_paged_prefill: the kernels against float64 on a GPU, their bitwise promises, and the
refusals, which need no GPU.

Every case runs over a pool that is NaN in foreign slots, a table that is out of range behind each
request, and an output that is NaN before. Names with T.. are the traps of that number in the design
notes: reported bugs of other kernels. The long and large cases: test_attn_paged_prefill_limits.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_prefill_case import PrefillCase, assert_right, make_case, reference

from astrai import _C
from astrai.extension import ops

HEAD_DIMS = (32, 64, 96, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)

# Lengths around tile edges, empty and one-token requests, new rows without and with cached ones.
Q_LENS = [1, 0, 5, 64, 130, 33, 1, 3]
KV_LENS = [1, 9, 5, 64, 130, 257, 300, 129]


def tail_lengths(step: int) -> tuple[list[int], list[int]]:
    """KV lengths around multiples of step, as whole prompts."""
    lens = [max(0, k * step + d) for k in (0, 1, 2) for d in (-1, 0, 1, 15, 16)]
    return lens, lens


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_result_is_the_float64_attention(head_dim: int, dtype: torch.dtype) -> None:
    case = make_case(Q_LENS, KV_LENS, n_heads=6, n_kv_heads=2, head_dim=head_dim, dtype=dtype)

    assert_right(case, case.run())


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("step", [32, 64, 128])
def test_T5_tails_of_key_tiles_do_not_read_what_lies_behind(head_dim: int, step: int) -> None:
    case = make_case(*tail_lengths(step), n_heads=2, n_kv_heads=1, head_dim=head_dim)

    assert_right(case, case.run())


@pytest.mark.gpu
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_T45_every_group_size_maps_rows_to_its_heads(group: int, head_dim: int) -> None:
    case = make_case([40, 1, 131], [40, 77, 200], 2 * group, 2, head_dim)

    assert_right(case, case.run())


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": False},
        {"window": 1},
        {"window": 37},
        {"window": 200},
        {"soft_cap": 20.0},
        {"soft_cap": 2.0, "window": 64},
        {"sm_scale": 1.0},
        {"sm_scale": 0.01},
    ],
    ids=str,
)
def test_T21_options_hold_for_output_and_lse(head_dim: int, options: dict[str, Any]) -> None:
    case = make_case(Q_LENS, KV_LENS, 6, 2, head_dim, **options)
    lse = torch.full(case.q.shape[:2], float("nan"), device="cuda")

    out = case.run(lse=lse)

    expected, expected_lse = reference(case)
    assert torch.isfinite(out).all()
    # With sm_scale 1 one key often holds nearly all weight; its rounding is the output's alone.
    assert (out.double() - expected).norm() / expected.norm() <= 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_T1_T2_T3_rows_that_see_no_key_are_zero_with_lse_minus_infinity(
    head_dim: int, is_causal: bool
) -> None:
    case = make_case([7, 129, 4, 0], [3, 1, 0, 5], 4, 2, head_dim, is_causal=is_causal)
    lse = torch.full(case.q.shape[:2], float("nan"), device="cuda")

    out = case.run(lse=lse)

    assert_right(case, out)
    _, expected_lse = reference(case)
    blind = expected_lse == float("-inf")
    assert blind.any()
    assert not out[blind].any()
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_T22_large_and_equal_scores_stay_exact(head_dim: int) -> None:
    case = make_case([150], [150], 4, 2, head_dim)
    case.q.mul_(30)
    case.k_cache[case.table[case.rows[0].long(), :50].long()] = 1.0

    assert_right(case, case.run())


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_T50_flat_scores_over_a_long_context_keep_their_precision(head_dim: int) -> None:
    case = make_case([9], [65536], 7, 1, head_dim, sm_scale=1e-3)
    case.v_cache.add_(1.0)

    assert_right(case, case.run())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_T35_a_row_has_the_same_bits_alone_in_a_batch_and_in_any_chunking(
    head_dim: int, dtype: torch.dtype
) -> None:
    case = make_case([700, 64, 1, 300], [900, 64, 300, 1000], 8, 2, head_dim, dtype)
    together = case.run()

    begin = 0
    for request, q_len in enumerate(case.q_lens):
        own = together[begin : begin + q_len]
        begin += q_len
        assert torch.equal(case.only(request).run(), own)
        for chunk in (1, 33, 256):
            for first in range(0, min(q_len, 6 * chunk), chunk):
                n_rows = min(chunk, q_len - first)
                part = case.only(request, first, n_rows).run()
                assert torch.equal(part, own[first : first + n_rows]), (chunk, first)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_tiles_of_any_size_and_order_give_the_same_bits(head_dim: int) -> None:
    case = make_case([300, 40], [333, 90], 6, 2, head_dim, window=77)
    expected = case.run()

    for q_tile_rows in (1, 16, 50, 512):
        other = PrefillCase(**{**vars(case), "q_tile_rows": q_tile_rows})
        assert torch.equal(other.run(), expected)
    order = torch.randperm(len(case.tiles()[0]), device="cuda")
    batch, index = (tiles[order].contiguous() for tiles in case.tiles())
    out = torch.full_like(case.q, float("nan"))
    ops.attn_paged_prefill(
        case.q,
        case.k_cache,
        case.v_cache,
        case.table,
        case.rows,
        case.indptr(case.kv_lens),
        case.indptr(case.q_lens),
        batch,
        index,
        is_causal=True,
        window=77,
        out=out,
    )
    assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_T59_a_hundred_repeats_over_two_inputs_are_bitwise_equal(head_dim: int) -> None:
    cases = [make_case([600, 200], [2000, 200], 8, 2, head_dim, seed=seed) for seed in (1, 2)]
    expected = [case.run() for case in cases]

    for _ in range(50):
        for case, first in zip(cases, expected, strict=True):
            assert torch.equal(case.run(), first)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_T52_a_nan_row_stays_alone(head_dim: int) -> None:
    case = make_case([100, 60], [100, 160], 4, 2, head_dim)
    expected = case.run()
    case.q[37, 1] = float("nan")

    out = case.run()

    assert out[37, 1].isnan().all()
    out[37, 1] = expected[37, 1]
    assert torch.equal(out, expected)


@pytest.mark.gpu
def test_T44_q_and_out_may_be_slices_of_wider_rows_and_pools_may_be_strided() -> None:
    case = make_case([50, 9], [70, 9], 4, 2, 64)
    expected = case.run()
    fused = torch.randn(59, 4 * 64 + 2 * 128, device="cuda").to(torch.bfloat16)
    q = fused[:, 64 : 64 + 256].view(59, 4, 64)
    q.copy_(case.q)
    both = torch.stack([case.k_cache, case.v_cache], dim=1)  # one row of K, then one of V
    wide = torch.full((59, 4, 128), float("nan"), dtype=torch.bfloat16, device="cuda")
    strided = {"q": q, "k_cache": both[:, 0], "v_cache": both[:, 1]}

    PrefillCase(**{**vars(case), **strided}).run(out=wide[..., 64:])

    assert torch.equal(wide[..., 64:], expected)
    assert wide[..., :64].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_T25_slots_past_two_to_the_31_elements_are_reached(head_dim: int) -> None:
    n_slots, n_kv_heads = 2**31 // head_dim + 1000, 1
    case = make_case([80], [200], 2, n_kv_heads, head_dim)
    k_cache = torch.empty(n_slots, n_kv_heads, head_dim, dtype=torch.bfloat16, device="cuda")
    v_cache = torch.empty_like(k_cache)
    shift = n_slots - len(case.k_cache)
    k_cache[shift:], v_cache[shift:] = case.k_cache, case.v_cache
    table = torch.where(case.table < len(case.k_cache), case.table + shift, case.table)
    moved = {"k_cache": k_cache, "v_cache": v_cache, "table": table}

    assert torch.equal(PrefillCase(**{**vars(case), **moved}).run(), case.run())


@pytest.mark.gpu
def test_T30_a_captured_launch_serves_other_lengths() -> None:
    small, large = (make_case(q, kv, 4, 2, 64) for q, kv in (([3, 40], [9, 200]), ([200, 7],) * 2))
    n_tiles, n_rows = 16, 256
    q = torch.zeros(n_rows, 4, 64, dtype=torch.bfloat16, device="cuda")
    pool = [torch.zeros(512, 2, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    table = torch.zeros(4, 512, dtype=torch.int32, device="cuda")
    rows, kv, qo = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (2, 3, 3))
    tiles = [torch.full((n_tiles,), -1, dtype=torch.int32, device="cuda") for _ in range(2)]
    out = torch.empty_like(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.attn_paged_prefill(q, *pool, table, rows, kv, qo, *tiles, is_causal=True, out=out)

    for case in (small, large):
        q[: len(case.q)] = case.q
        for cache, own in zip(pool, (case.k_cache, case.v_cache), strict=True):
            cache[: len(own)] = own
        table[:, : case.table.shape[1]] = case.table
        rows.copy_(case.rows)
        kv.copy_(case.indptr(case.kv_lens))
        qo.copy_(case.indptr(case.q_lens))
        for all_tiles, own in zip(tiles, case.tiles(), strict=True):
            all_tiles.fill_(-1)
            all_tiles[: len(own)] = own
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out[: len(case.q)], case.run())


@pytest.mark.gpu
def test_T4_nothing_to_do_is_no_launch() -> None:
    assert make_case([], []).run().shape == (0, 4, 64)
    assert make_case([0, 0], [3, 0]).run().shape == (0, 4, 64)


def cpu_arguments(**changes: Any) -> dict[str, Any]:
    case = make_case([3], [5], device="cpu")
    arguments: dict[str, Any] = {
        "q": case.q,
        "k_cache": case.k_cache,
        "v_cache": case.v_cache,
        "req_to_token": case.table,
        "req_pool_indices": case.rows,
        "kv_indptr": case.indptr(case.kv_lens),
        "qo_indptr": case.indptr(case.q_lens),
        "q_tile_to_batch": case.tiles()[0],
        "q_tile_to_index": case.tiles()[1],
        "is_causal": True,
    }
    return arguments | changes


HALF = torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(3, 4, dtype=HALF)}, r"q has shape \[3, 4\]"),
        ({"q": torch.zeros(3, 4, 32, dtype=HALF)}, r"k_cache has shape \[12, 2, 64\]"),
        ({"q": torch.zeros(3, 5, 64, dtype=HALF)}, "q.n_heads is 5 and k_cache.n_kv_heads 2"),
        (
            {"q": torch.zeros(3, 4, 128, dtype=HALF)[..., ::2]},
            "q of shape .* from 2 on must be contiguous",
        ),
        (
            {"q": torch.zeros(1025, dtype=HALF)[1:769].view(3, 4, 64)},
            "q has rows that do not start",
        ),
        ({"k_cache": torch.zeros(12, 2, 64)}, "k_cache is float32; accepted: bfloat16"),
        ({"v_cache": torch.zeros(11, 2, 64, dtype=HALF)}, r"v_cache has shape \[11, 2, 64\]"),
        ({"kv_indptr": torch.zeros(3, dtype=torch.int32)}, r"kv_indptr has shape \[3\]"),
        ({"qo_indptr": torch.zeros(2, dtype=torch.int64)}, "qo_indptr is int64; accepted: int32"),
        ({"q_tile_to_index": torch.zeros(2, dtype=torch.int32)}, "q_tile_to_index has shape"),
        ({"out": torch.zeros(3, 4, 64)}, "out is float32; accepted: bfloat16"),
        ({"lse": torch.zeros(3, 5)}, r"lse has shape \[3, 5\]"),
        ({"sm_scale": -1.0}, "sm_scale is -1.0.*; accepted: positive"),
        ({"window": 4, "is_causal": False}, "window needs is_causal"),
        ({"window": -4}, "window is -4; accepted"),
        ({"soft_cap": -1.0}, "soft_cap is -1.0.*; accepted"),
        ({"mask": torch.zeros(3, 5)}, "mask is a tensor; accepted: None"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_T34_arguments_that_do_not_fit_are_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^attn_paged_prefill: {message}"):
        ops.attn_paged_prefill(**cpu_arguments(**changes))


def test_float32_has_no_kernel() -> None:
    pool = torch.zeros(12, 2, 64)
    changes = {"q": torch.zeros(3, 4, 64), "k_cache": pool, "v_cache": pool}
    with pytest.raises(ops.KernelUnavailableError, match="q is float32; there are kernels for"):
        ops.attn_paged_prefill(**cpu_arguments(**changes))


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"q is on the CPU|no CUDA kernels"):
        ops.attn_paged_prefill(**cpu_arguments())


@pytest.mark.gpu
def test_a_head_dim_that_was_not_compiled_is_refused_by_name() -> None:
    with pytest.raises(ops.KernelUnavailableError, match=r"bfloat16 with head_dim 80; this build"):
        make_case([3], [5], head_dim=80).run()
