"""The choice between our kernel and the library follows the measured table."""

from __future__ import annotations

import json
from pathlib import Path

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


@pytest.mark.parametrize("product", SHAPES)
def test_our_kernel_is_taken_where_it_was_faster(product: str) -> None:
    rows = [row for row in json.loads(RESULTS.read_text())["rows"] if row["product"] == product]
    assert len(rows) >= 8
    for row in rows:
        if row["with"] == "silu_mul":
            ours, theirs = row["us"], row["torch and kernels us"]
            most = most_gated_rows(*SHAPES[product])
        else:
            ours, theirs = row["alone us"], row["torch alone us"]
            most = most_product_rows(*SHAPES[product])
        if row["rows"] <= most:
            assert ours < 1.02 * theirs, row
        else:
            assert ours > 0.95 * theirs, row


def test_small_and_wide_weights_stay_with_the_library() -> None:
    assert most_product_rows(128, 2048) == most_gated_rows(1536, 576) == 0
    assert most_product_rows(128256, 4096) == most_product_rows(151936, 1024) == 0


def test_rows_on_a_cpu_stay_there() -> None:
    x, weight = torch.ones(64, 3072, dtype=torch.bfloat16), torch.ones(1024, 3072).bfloat16()
    assert narrow_product(x, weight, None, None) is None
    assert torch.equal(linear(x, weight), torch.full((64, 1024), 3072).bfloat16())
