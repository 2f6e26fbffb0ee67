"""The memory of a card, by arithmetic: what the ledger leaves for the KV pool, and its refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from astrai.engine.decode_runner import graph_sizes, padded_rows
from astrai.engine.kv_sizing import auto_chunk
from astrai.engine.memory_ledger import (
    NotEnoughMemoryError,
    StepLimits,
    gpu_ledger,
    kv_token_bytes,
)
from astrai.models.experts_config import ExpertsConfig

GIB = 2**30
LIMITS = StepLimits(64, 8192, 2048, 16, has_graphs=True)
MEMORY = (20 * GIB, 80 * GIB)


def model_8b(experts: ExpertsConfig | None = None) -> Any:
    config = SimpleNamespace(
        vocab_size=128256,
        hidden_size=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        experts=experts,
    )
    weight = SimpleNamespace(nbytes=16 * GIB)
    return SimpleNamespace(
        config=config,
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
        parameters=lambda: [weight],
    )


def promised(limits: StepLimits = LIMITS, utilization: float = 0.9, **options: Any) -> Any:
    return gpu_ledger(model_8b(), limits, utilization, memory=MEMORY, **options)


def test_the_pool_takes_what_the_share_leaves_and_no_page_more() -> None:
    limits = replace(LIMITS, max_batch_size=256)
    ledger = promised(limits)
    used = sum(ledger.parts.values()) + ledger.in_use - ledger.weights
    page_bytes = limits.page_size * kv_token_bytes(model_8b())
    assert used <= 0.9 * ledger.total < used + page_bytes
    assert ledger.kv_tokens % limits.page_size == 0
    assert ledger.kv_pool == (ledger.kv_tokens + 1) * 131072  # the reserved slot


def test_full_sequences_of_all_requests_are_enough() -> None:
    limits = replace(LIMITS, max_batch_size=4)
    assert promised(limits).kv_tokens == 4 * 8192


def test_slots_that_are_asked_for_are_given_or_refused() -> None:
    most = promised(replace(LIMITS, max_batch_size=64), kv_tokens=16 * 1024).kv_tokens
    assert most == 16 * 1024
    with pytest.raises(NotEnoughMemoryError, match="needs 10000000 tokens"):
        promised(kv_tokens=10_000_000)


@pytest.mark.parametrize(
    "change",
    [
        {"max_batch_size": 128},
        {"max_seq_len": 65536},
        {"prefill_chunk": 16384},
    ],
)
def test_larger_steps_leave_less_for_the_pool(change: dict[str, Any]) -> None:
    parts = promised().parts
    larger = promised(replace(LIMITS, **change)).parts
    assert sum(larger.values()) - larger["kv_pool"] > sum(parts.values()) - parts["kv_pool"]


def test_a_refusal_says_what_would_fit() -> None:
    limits = replace(LIMITS, max_seq_len=131072, max_batch_size=8)
    with pytest.raises(NotEnoughMemoryError) as refused:
        promised(limits, utilization=0.4)
    found = re.search(r"max_seq_len or kv_tokens up to (\d+)", str(refused.value))
    assert found is not None
    fitting = int(found.group(1))
    assert promised(replace(limits, max_seq_len=fitting), utilization=0.4).kv_tokens >= fitting


def test_graphs_count_the_kernels_of_experts_in_the_layers_that_have_them() -> None:
    def graphs(**changes: Any) -> int:
        experts = ExpertsConfig(64, 8, 512, norm_topk_prob=True, **changes)
        return gpu_ledger(model_8b(experts), LIMITS, 0.9, memory=MEMORY).parts["graphs"]

    assert promised().parts["graphs"] < graphs(sparse_step=2) < graphs()


def test_experts_that_are_not_grouped_take_more_kernels_and_grouped_ones_more_room_a_row() -> None:
    def parts(n_experts: int) -> dict[str, int]:
        experts = ExpertsConfig(n_experts, 8, 14336, norm_topk_prob=True)
        return gpu_ledger(model_8b(experts), LIMITS, 0.9, memory=MEMORY).parts

    grouped, dense = parts(512), parts(513)  # 512 is the most that the kernels take
    assert dense["graphs"] > 2 * grouped["graphs"]
    assert grouped["step"] > 1.5 * promised().step


def test_graphs_that_are_not_captured_take_nothing() -> None:
    assert promised(replace(LIMITS, has_graphs=False)).graphs == 0 < promised().graphs


def test_the_lines_add_up_to_the_card() -> None:
    sizes = [float(line.split()[-2]) for line in promised().lines()]
    assert sum(sizes) == pytest.approx(80, abs=0.1)


@pytest.mark.parametrize(
    ("n_rows", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (17, 24), (49, 50)]
)
def test_rows_are_padded_to_the_next_size(n_rows: int, padded: int) -> None:
    assert padded_rows(n_rows, 50) == padded
    assert padded in graph_sizes(50)


@pytest.mark.parametrize(
    ("device", "n_weights", "chunk"),
    [
        ("cpu", 8e9, "512"),
        ("cuda", 8.03e9, "1024 to 4096"),
        ("cuda", 4e9, "2048 to 4096"),
        ("cuda", 0.6e9, "4096"),
        ("cuda", 70e9, "512 to 4096"),
    ],
)
def test_chunks_are_smaller_where_a_token_takes_longer(
    device: str, n_weights: float, chunk: str
) -> None:
    weight = SimpleNamespace(numel=lambda: int(n_weights))
    config = SimpleNamespace(
        n_layers=32, n_heads=32, head_dim=128, window_of=lambda layer_id: 4096 if layer_id else None
    )
    model: Any = SimpleNamespace(
        device=torch.device(device), parameters=lambda: [weight], config=config
    )
    assert str(auto_chunk(model)) == chunk
    if device == "cuda":
        assert auto_chunk(model).pair_cost == 4 * 32 * 128  # of the one layer without a window
