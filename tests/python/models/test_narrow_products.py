"""The choice between our kernel and the library follows the measured table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from astrai.models.linear import linear
from astrai.models.narrow_products import most_gated_rows, most_product_rows, narrow_product

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "narrow_linear.json"
SHAPES = {  # those of benchmarks/kernels/narrow_linear.py
    "qwen0.6b qkv": (4096, 1024),
    "qwen0.6b o": (1024, 2048),
    "qwen0.6b gate_up": (6144, 1024),
    "qwen0.6b down": (1024, 3072),
    "llama8b qkv": (6144, 4096),
    "llama8b o": (4096, 4096),
    "llama8b gate_up": (28672, 4096),
    "llama8b down": (4096, 14336),
}


@pytest.mark.parametrize("layer", ["qwen0.6b", "llama8b"])
def test_a_layer_is_taken_where_its_products_were_faster(layer: str) -> None:
    rows = [row for row in json.loads(RESULTS.read_text())["rows"] if row["product"] in SHAPES]
    by_rows: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["product"].startswith(layer):
            by_rows.setdefault(row["rows"], []).append(row)
    assert len(by_rows) >= 8
    for n_rows, products in by_rows.items():
        assert len(products) == 4
        taken = {n_rows <= _most_rows(row) for row in products}
        ours, theirs = (sum(_times(row)[side] for row in products) for side in (0, 1))
        assert len(taken) == 1, n_rows
        assert ours < theirs if taken == {True} else ours > 0.95 * theirs, n_rows


def test_no_product_that_is_taken_was_much_slower_alone() -> None:
    for row in json.loads(RESULTS.read_text())["rows"]:
        ours, theirs = _times(row)
        assert ours < 1.1 * theirs or row["rows"] > _most_rows(row), row


def _times(row: dict[str, Any]) -> tuple[float, float]:
    """Microseconds of our kernel and the library's, of what the decoder joins."""
    if row["with"] == "silu_mul":
        return row["us"], row["torch and kernels us"]
    return row["alone us"], row["torch alone us"]


def _most_rows(row: dict[str, Any]) -> int:
    most = most_gated_rows if row["with"] == "silu_mul" else most_product_rows
    return most(*SHAPES[row["product"]])


def test_small_and_wide_weights_stay_with_the_library() -> None:
    assert most_product_rows(128, 2048) == most_gated_rows(1536, 576) == 0
    assert most_product_rows(128256, 4096) == most_product_rows(151936, 1024) == 0


def test_rows_on_a_cpu_stay_there() -> None:
    x, weight = torch.ones(64, 3072, dtype=torch.bfloat16), torch.ones(1024, 3072).bfloat16()
    assert narrow_product(x, weight, None, None) is None
    assert torch.equal(linear(x, weight), torch.full((64, 1024), 3072).bfloat16())
