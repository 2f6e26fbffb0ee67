"""keep_drawn: against the same written in Python, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from astrai import _C
from astrai.extension import ops
from edit_lists import count_drawn

N_LISTS, CAPACITY, N_PLACES = 40, 300, 64


def lists_of(n_rows: int, vocab_size: int) -> ops.LogitEdits:
    """Of all lengths up to a full list, every third without penalties; some rows have none."""
    lens = torch.randint(0, CAPACITY + 1, (N_LISTS,), dtype=torch.int32)
    lens[::5] = CAPACITY
    ids = torch.stack([torch.randperm(vocab_size)[:CAPACITY] for _ in range(N_LISTS)]).int()
    counts = torch.randint(-1, 5, (N_LISTS, CAPACITY)).float()
    penalties = torch.tensor([[1.2, 0, 0], [1, 0, 0], [1, 0.5, 0], [1, 0, 0], [1, 0, -0.1]])
    rows = torch.randperm(N_LISTS)[:n_rows].int()
    rows[::4] = -1
    bias = torch.randn(N_LISTS, CAPACITY)
    return ops.LogitEdits(
        rows, lens, ids, bias, counts, penalties.repeat(N_LISTS // len(penalties), 1)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("n_rows", [1, 33])
def test_ids_and_counts_are_those_of_python(n_rows: int) -> None:
    expected = lists_of(n_rows, 350)
    edits = ops.LogitEdits(*(tensor.cuda() for tensor in expected.tensors))
    last_ids = torch.full((N_PLACES,), -1, dtype=torch.int32, device="cuda")
    expected_ids = last_ids.cpu()
    for _ in range(40):
        token_ids = torch.randint(0, 350, (n_rows,), dtype=torch.int32)
        is_faulty = torch.rand(n_rows) < 0.1
        rows = torch.randperm(N_PLACES)[:n_rows].int()
        ops.keep_drawn(token_ids.cuda(), is_faulty.cuda(), rows.cuda(), last_ids, edits)
        expected_ids[rows.long()] = token_ids
        count_drawn(expected, token_ids.tolist(), is_faulty.tolist())
    assert torch.equal(last_ids.cpu(), expected_ids)
    for found, wanted in zip(edits.tensors, expected.tensors, strict=True):
        assert torch.equal(found.cpu(), wanted)


@pytest.mark.gpu
def test_it_is_part_of_a_graph_and_rows_may_share_a_place() -> None:
    token_ids = torch.zeros(9, dtype=torch.int32, device="cuda")
    is_faulty = torch.zeros(9, dtype=torch.bool, device="cuda")
    rows = torch.tensor([3, *[4] * 8], dtype=torch.int32, device="cuda")
    last_ids = torch.full((5,), -1, dtype=torch.int32, device="cuda")
    ops.keep_drawn(token_ids, is_faulty, rows, last_ids)  # loads the kernel
    last_ids.fill_(-1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.keep_drawn(token_ids, is_faulty, rows, last_ids)
    assert last_ids.tolist() == [-1] * 5
    token_ids += torch.arange(9, device="cuda")
    graph.replay()
    assert last_ids.tolist()[:4] == [-1, -1, -1, 0] and 1 <= int(last_ids[4]) <= 8


def cpu_arguments() -> dict[str, Any]:
    return {
        "token_ids": torch.zeros(2, dtype=torch.int32),
        "is_faulty": torch.zeros(2, dtype=torch.bool),
        "rows": torch.zeros(2, dtype=torch.int32),
        "last_ids": torch.zeros(5, dtype=torch.int32),
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_ids", torch.zeros(2, dtype=torch.int64), "token_ids is int64; accepted: int32"),
        ("is_faulty", torch.zeros(3, dtype=torch.bool), r"is_faulty has shape \[3\]; expected"),
        ("rows", torch.zeros(4, dtype=torch.int32)[::2], "rows of shape .* must be contiguous"),
        ("last_ids", torch.zeros(5), "last_ids is float32; accepted: int32"),
        ("edits", lists_of(3, 350), r"edit_rows has shape \[3\]; expected \[B=2\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.keep_drawn(**(cpu_arguments() | {name: value}))


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"token_ids is on the CPU|no CUDA kernels"):
        ops.keep_drawn(**cpu_arguments())
