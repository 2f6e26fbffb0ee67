"""plan_prefill_splits: which launches of attn_paged_prefill are split, and the bounds that hold for
all of them; the refusals of the op's arguments. No GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged_prefill_case import make_case

from astrai import _C
from astrai.extension import ops

LLAMA = {"q_tile_rows": 32, "n_heads": 32, "n_kv_heads": 8, "n_multiprocessors": 132}
NONE = (0, 1, 0)


def plan(q_lens: list[int], kv_lens: list[int], window: int = 0, **changes: int) -> Any:
    return _C.plan_prefill_splits(q_lens, kv_lens, window=window, **(LLAMA | changes))


@st.composite
def launches(draw: st.DrawFn) -> dict[str, Any]:
    q_lens = draw(st.lists(st.integers(0, 600), max_size=12))
    contexts = st.one_of(st.integers(0, 3000), st.integers(0, 150_000))
    n_kv_heads = draw(st.integers(1, 8))
    return {
        "q_lens": q_lens,
        "kv_lens": [q_len + draw(contexts) for q_len in q_lens],
        "q_tile_rows": draw(st.integers(4, 192)),
        "n_heads": n_kv_heads * draw(st.integers(1, 8)),
        "n_kv_heads": n_kv_heads,
        "window": draw(st.sampled_from([0, 0, 100, 4096])),
        "n_multiprocessors": draw(st.sampled_from([1, 20, 108, 132, 148])),
    }


def tile_keys(launch: dict[str, Any]) -> list[int]:
    """Keys that each tile sees."""
    rows, window = launch["q_tile_rows"], launch["window"]
    keys = [
        kv_len - q_len + min(first + rows, q_len)
        for q_len, kv_len in zip(launch["q_lens"], launch["kv_lens"], strict=True)
        for first in range(0, q_len, rows)
    ]
    return [min(n, window + rows) if window else n for n in keys]


@given(launches())
def test_a_plan_cuts_all_long_tiles_into_parts_that_fill_the_device_at_most_three_times(
    launch: dict[str, Any],
) -> None:
    n_split_tiles, n_splits, split_len = found = _C.plan_prefill_splits(**launch)

    assert _C.plan_prefill_splits(**launch) == found
    keys = tile_keys(launch)
    if n_split_tiles == 0:
        assert found == NONE
        return
    assert n_splits >= 2
    assert split_len >= 512
    assert n_splits * split_len >= max(keys)
    assert n_split_tiles == sum(n > split_len for n in keys)
    assert n_split_tiles * n_splits <= 3 * launch["n_multiprocessors"]


@given(launches())
def test_the_workspace_holds_every_plan(launch: dict[str, Any]) -> None:
    n_split_tiles, n_splits, _ = _C.plan_prefill_splits(**launch)
    sizes = {name: launch[name] for name in LLAMA}
    size = _C.prefill_workspace_size(head_dim=128, **sizes)

    if n_split_tiles:
        n_rows = n_split_tiles * n_splits * launch["q_tile_rows"] * launch["n_heads"]
        assert n_rows * (128 + 2) <= size


def test_few_rows_behind_a_long_context_are_spread_over_the_device() -> None:
    n_split_tiles, n_splits, _ = plan([16], [100_016])

    assert n_split_tiles == 1
    assert 120 <= 8 * n_splits <= 132  # parts of 8 KV heads


def test_a_long_request_among_short_ones_is_split_alone() -> None:
    n_split_tiles, n_splits, _ = plan([500, 16, 40], [500, 100_016, 800])

    assert n_split_tiles == 1
    assert n_splits >= 8


def test_a_last_wave_that_is_nearly_empty_is_filled() -> None:
    n_split_tiles, n_splits, _ = plan([640], [33_408])  # 160 items for 132 multiprocessors

    assert (n_split_tiles, n_splits) == (20, 2)


@pytest.mark.parametrize(
    ("q_lens", "kv_lens"),
    [
        ([], []),
        ([0], [100_000]),
        ([16], [1016]),
        ([512], [512]),
        ([2048] * 8, [2048] * 8),
        ([8192], [8192]),
        ([512], [100_512]),  # 128 items for 132 multiprocessors
    ],
    ids=str,
)
def test_short_and_full_launches_are_not_split(q_lens: list[int], kv_lens: list[int]) -> None:
    assert plan(q_lens, kv_lens) == NONE


def test_a_window_is_all_that_counts() -> None:
    assert plan([16], [100_016], window=1024) == NONE
    n_split_tiles, n_splits, split_len = plan([16], [100_016], window=8192)
    assert n_split_tiles == 1
    assert n_splits * split_len < 8192 + 32 + 128 * n_splits


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 q_lens and 1 kv_lens; one of each"):
        plan([1, 2], [3])
    with pytest.raises(ValueError, match=r"q_tile_rows, .* must be positive"):
        plan([1], [3], q_tile_rows=0)


@pytest.mark.parametrize("heads", [(4, 8), (12, 8), (0, 8), (8, 0), (8, -8)], ids=str)
def test_heads_that_do_not_divide_are_refused(heads: tuple[int, int]) -> None:
    n_heads, n_kv_heads = heads

    with pytest.raises(ValueError, match="must be"):
        plan([4096], [4096], n_heads=n_heads, n_kv_heads=n_kv_heads)
    with pytest.raises(ValueError, match="n_heads must be a positive multiple of n_kv_heads"):
        _C.prefill_workspace_size(64, n_heads, n_kv_heads, 128, 132)


def test_a_workspace_of_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^prefill_workspace_size: .* must be positive"):
        _C.prefill_workspace_size(64, 8, 8, 128, 0)


def test_lengths_up_to_the_largest_integer_are_planned() -> None:
    largest = 2**31 - 1

    assert plan([largest], [largest]) == NONE  # more tiles than are looked at
    n_split_tiles, n_splits, split_len = plan([16], [largest])
    assert n_split_tiles == 1
    assert n_splits * split_len >= largest
    assert plan([16, 16], [-largest - 1, 100_016]) == plan([16, 16], [0, 100_016])


FLOATS = torch.zeros(1000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": (2, 2, 64), "workspace": FLOATS}, "n_split_tiles is 2; accepted: 0 to the 1"),
        ({"splits": (-1, 2, 64), "workspace": FLOATS}, "n_split_tiles is -1; accepted"),
        ({"splits": (1, 1, 64), "workspace": FLOATS}, "n_splits is 1 and split_len 64; accepted"),
        ({"splits": (1, 2, 0), "workspace": FLOATS}, "n_splits is 2 and split_len 0; accepted"),
        ({"splits": (1, 2, 2**30 + 1), "workspace": FLOATS}, "n_splits is 2 .*; accepted"),
        ({"splits": (1, 2, 64)}, "n_split_tiles needs a workspace"),
        ({"splits": (1, 2, 64), "workspace": FLOATS.half()}, "workspace is float16; accepted"),
        ({"splits": (1, 2, 64), "workspace": FLOATS[::2]}, "workspace of shape .* contiguous"),
        ({"splits": (1, 2, 64), "workspace": FLOATS[1:]}, "workspace must start on 16 bytes"),
        ({"splits": (1, 2, 64), "workspace": FLOATS.view(2, -1)}, "workspace has shape"),
    ],
)
def test_splits_that_do_not_fit_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    case = make_case([3], [5], device="cpu")

    with pytest.raises(ValueError, match=f"^attn_paged_prefill: {message}"):
        ops.attn_paged_prefill(
            case.q,
            case.k_cache,
            case.v_cache,
            case.table,
            case.rows,
            case.indptr(case.kv_lens),
            case.indptr(case.q_lens),
            *case.tiles(),
            is_causal=True,
            **changes,
        )
