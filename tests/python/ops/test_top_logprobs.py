"""top_logprobs: against a float64 log_softmax on a GPU, and its refusals, which need none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def first_of_order(logits: Tensor, n: int) -> Tensor:
    """The n best ids of each row, the lower id first on a tie."""
    return torch.sort(logits.double(), descending=True, stable=True).indices[:, :n]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab_size", [20, 1000, 8193, 49152, 151936, 262144])
@pytest.mark.parametrize("n_top", [0, 1, 20])
def test_values_are_those_of_the_float64_log_softmax(
    n_top: int, vocab_size: int, dtype: torch.dtype
) -> None:
    logits = (torch.randn(13, vocab_size, device="cuda") * 4).to(dtype)
    chosen_ids = torch.randint(0, vocab_size, (13,), device="cuda")
    expected = torch.log_softmax(logits.double(), dim=-1)

    chosen, top_ids, logprobs = ops.top_logprobs(logits, chosen_ids, n_top)

    torch.testing.assert_close(
        chosen.double(), expected.gather(1, chosen_ids[:, None])[:, 0], rtol=1e-6, atol=2e-5
    )
    assert torch.equal(top_ids.long(), first_of_order(logits, n_top))
    torch.testing.assert_close(
        logprobs.double(), expected.gather(1, top_ids.long()), rtol=1e-6, atol=2e-5
    )


@pytest.mark.gpu
def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    logits = torch.randn(300, 40000, device="cuda").bfloat16()
    ids = torch.arange(300, device="cuda", dtype=torch.int32)
    together = ops.top_logprobs(logits, ids, 7)
    for row in (0, 150, 299):
        alone = ops.top_logprobs(logits[row : row + 1], ids[row : row + 1], 7)
        for one, all_rows in zip(alone, together, strict=True):
            assert torch.equal(one[0], all_rows[row])


@pytest.mark.gpu
def test_impossible_tokens_have_the_floor_and_are_no_alternatives() -> None:
    logits = torch.full((2, 5000), -torch.inf, device="cuda")
    logits[0, 4000], logits[0, 12] = 1.0, 1.0
    chosen, top_ids, logprobs = ops.top_logprobs(logits, torch.tensor([5, 5], device="cuda"), 3)
    assert chosen.tolist() == [-9999.0, -9999.0]
    assert top_ids.tolist() == [[12, 4000, -1], [-1, -1, -1]]
    torch.testing.assert_close(logprobs[0, :2].cpu(), torch.full((2,), -0.6931472))
    assert logprobs[1].tolist() == [-9999.0] * 3


@pytest.mark.gpu
def test_equal_logits_are_ordered_by_id_however_many_they_are() -> None:
    logits = torch.zeros(3, 100000, device="cuda")
    _, top_ids, _ = ops.top_logprobs(logits, torch.zeros(3, dtype=torch.int64, device="cuda"), 20)
    assert top_ids.tolist() == [list(range(20))] * 3


@pytest.mark.parametrize(
    ("token_ids", "n_top", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), 2, r"token_ids has shape \[3\]; expected \[B=2\]"),
        (torch.zeros(2), 2, "token_ids is float32; accepted: int32, int64"),
        (torch.zeros(2, dtype=torch.int64), 65, "at most 64 a row"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(token_ids: Tensor, n_top: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.top_logprobs(torch.zeros(2, 100), token_ids, n_top)


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"logits is on the CPU|no CUDA kernels"):
        ops.top_logprobs(torch.zeros(2, 100), torch.zeros(2, dtype=torch.int64), 4)
