"""attn_paged_prefill with the keys of a tile spread over several thread blocks: against float64 and
against the same call without splits, over a workspace that is NaN before. All need a GPU.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from paged_prefill_case import MAX_ERROR, PrefillCase, assert_right, make_case, reference
from torch import Tensor

from astrai import _C
from astrai.extension import ops

pytestmark = pytest.mark.gpu

HEAD_DIMS = (32, 64, 96, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)
GUARD = 64  # float32 behind the workspace
Splits = tuple[int, int, int]


def n_tiles(case: PrefillCase) -> int:
    return sum(-(-q_len // case.q_tile_rows) for q_len in case.q_lens)


def all_tiles(case: PrefillCase, n_splits: int, split_len: int) -> Splits:
    return n_tiles(case), n_splits, split_len


def workspace_of(case: PrefillCase, splits: Splits) -> Tensor:
    """As much as the contract says and a guard behind it, all NaN."""
    n_rows = splits[0] * splits[1] * case.q_tile_rows * case.q.shape[1]
    n = n_rows * (case.q.shape[2] + 2)
    return torch.full((n + GUARD,), float("nan"), device="cuda")


def run_split(case: PrefillCase, splits: Splits, **more: Any) -> Tensor:
    workspace = workspace_of(case, splits)
    out = case.run(splits=splits, workspace=workspace[:-GUARD], **more)
    assert workspace[-GUARD:].isnan().all()
    return out


def planned(case: PrefillCase, n_multiprocessors: int | None = None) -> Splits:
    own = torch.cuda.get_device_properties(0).multi_processor_count
    window = case.options.get("window", 0)
    heads = case.q.shape[1], case.k_cache.shape[1]
    return _C.plan_prefill_splits(
        case.q_lens, case.kv_lens, case.q_tile_rows, *heads, window, n_multiprocessors or own
    )


def assert_close(out: Tensor, whole: Tensor) -> None:
    """Of two results that are both rounded."""
    error = (out.double() - whole.double()).norm() / whole.double().norm()
    assert error <= 1.5 * MAX_ERROR[out.dtype], f"relative difference {error.item():.3g}"


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("context", [1000, 8192, 8200])
@pytest.mark.parametrize("chunk", [1, 7, 16, 100, 300])
def test_splits_give_the_float64_attention(chunk: int, context: int, head_dim: int) -> None:
    case = make_case([chunk], [context + chunk], 8, 2, head_dim)

    out = run_split(case, all_tiles(case, 7, 512))

    assert_right(case, out)
    assert_close(out, case.run())


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("chunk", [1, 16, 300])
def test_a_context_of_100000_is_split_as_planned(chunk: int, head_dim: int) -> None:
    case = make_case([chunk], [100000 + chunk], 8, 2, head_dim)
    splits = planned(case)
    assert splits[0] > 0

    assert_right(case, run_split(case, splits))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8, 12, 16, 17])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_every_group_size_finds_its_parts(group: int, head_dim: int, dtype: torch.dtype) -> None:
    case = make_case([40, 1, 131], [1040, 77, 2000], 2 * group, 2, head_dim, dtype)

    assert_right(case, run_split(case, all_tiles(case, 5, 300)))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": False},
        {"window": 1},
        {"window": 700},
        {"window": 1280},
        {"soft_cap": 20.0},
        {"soft_cap": 2.0, "window": 640},
        {"sm_scale": 1.0},
    ],
    ids=str,
)
def test_options_hold_for_output_and_lse(head_dim: int, options: dict[str, Any]) -> None:
    case = make_case([70, 3, 0, 130], [2070, 1500, 9, 130], 6, 2, head_dim, **options)
    lse = torch.full(case.q.shape[:2], float("nan"), device="cuda")

    out = run_split(case, all_tiles(case, 4, 256), lse=lse)

    expected, expected_lse = reference(case)
    assert torch.isfinite(out).all()
    assert (out.double() - expected).norm() / expected.norm() <= 3e-3
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_T3_T8_rows_and_parts_without_keys_are_zero_and_minus_infinity(
    head_dim: int, is_causal: bool
) -> None:
    # Of the first request the first 200 rows see no key, and some of the tile next to them do.
    case = make_case([600, 129, 4], [400, 1, 0], 4, 2, head_dim, is_causal=is_causal)
    lse = torch.full(case.q.shape[:2], float("nan"), device="cuda")

    out = run_split(case, all_tiles(case, 6, 128), lse=lse)

    assert_right(case, out)
    _, expected_lse = reference(case)
    blind = expected_lse == float("-inf")
    assert blind.any()
    assert not out[blind].any()
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_long_and_short_requests_share_a_planned_launch(head_dim: int) -> None:
    q_lens, kv_lens = [16, 300, 1, 40, 0, 90], [30016, 300, 9000, 5040, 70, 1090]
    case = replace(make_case(q_lens, kv_lens, 8, 2, head_dim), is_sorted=True)
    whole = case.run()
    splits = planned(case)
    assert 0 < splits[0] < n_tiles(case)

    out = run_split(case, splits)

    assert_right(case, out)
    begin = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        if kv_len <= splits[2]:  # a request of one split has its own bits
            assert torch.equal(out[begin : begin + q_len], whole[begin : begin + q_len])
        begin += q_len


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_more_keys_than_the_splits_hold_are_the_last_ones(head_dim: int) -> None:
    case = make_case([20, 200], [5020, 3000], 4, 2, head_dim)

    assert_right(case, run_split(case, all_tiles(case, 3, 128)))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_same_call_has_the_same_bits_each_time(head_dim: int) -> None:
    case = make_case([130, 9], [9130, 20009], 8, 2, head_dim)
    splits = all_tiles(case, 9, 1024)
    first = run_split(case, splits)

    for _ in range(5):
        assert torch.equal(run_split(case, splits), first)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_a_nan_among_the_keys_of_a_request_stays_its_own(head_dim: int) -> None:
    case = make_case([16, 16], [4016, 5016], 4, 2, head_dim)
    case.k_cache[case.table[case.rows[0].long(), 1500].long()] = float("nan")

    out = run_split(case, all_tiles(case, 4, 1024))

    assert out[:16].isnan().all()
    assert_right(case.only(1), out[16:])


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_tiles_of_more_rows_than_a_block_are_split_alike(head_dim: int) -> None:
    case = make_case([500, 77], [3500, 2077], 8, 2, head_dim)
    large = replace(case, q_tile_rows=case.q_tile_rows * 2 + 5)

    assert_right(large, run_split(large, all_tiles(large, 3, 700)))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_many_random_launches_end_with_the_right_result(head_dim: int) -> None:
    generator = random.Random(head_dim)
    for seed in range(12):
        n = generator.randrange(1, 12)
        q_lens = [generator.randrange(120) for _ in range(n)]
        kv_lens = [q_len + generator.choice([0, 50, 700, 3000, 6000]) for q_len in q_lens]
        case = make_case(q_lens, kv_lens, 6, 2, head_dim, seed=seed)
        splits = (
            generator.randrange(1, n_tiles(case) + 1) if n_tiles(case) else 0,
            generator.randrange(2, 20),
            generator.randrange(1, 1500),
        )

        assert_right(case, run_split(case, splits))


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_T30_a_captured_launch_serves_other_lengths(head_dim: int) -> None:
    case = make_case([20, 33], [2020, 9033], 4, 2, head_dim)
    splits = all_tiles(case, 5, 1024)
    workspace, out = workspace_of(case, splits), torch.full_like(case.q, float("nan"))
    kv, qo, tiles = case.indptr([20, 33]), case.indptr(case.q_lens), case.tiles()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.attn_paged_prefill(
            case.q,
            case.k_cache,
            case.v_cache,
            case.table,
            case.rows,
            kv,
            qo,
            *tiles,
            is_causal=True,
            out=out,
            q_tile_rows=case.q_tile_rows,
            workspace=workspace,
            splits=splits,
        )

    for kv_lens in ([2020, 9033], [20, 33], [1500, 40]):
        other = replace(case, kv_lens=kv_lens)
        kv.copy_(case.indptr(kv_lens))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, run_split(other, splits))
        assert_right(other, out)


def test_a_workspace_that_is_too_small_is_refused() -> None:
    case = make_case([16], [4016], 4, 2, 64)
    splits = all_tiles(case, 4, 1024)

    with pytest.raises(ValueError, match=r"workspace has 100 elements; 1 tiles of .* need"):
        case.run(splits=splits, workspace=torch.empty(100, device="cuda"))
