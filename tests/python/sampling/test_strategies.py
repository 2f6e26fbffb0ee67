from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai.sampling import (
    MinPStrategy,
    SamplingPipeline,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
    sample,
)
from astrai.sampling.strategies import first_k

LOGITS = torch.tensor([[1.0, 4.0, 2.0, 3.0], [0.0, 0.0, 5.0, 1.0]])


def kept(logits: torch.Tensor) -> list[list[int]]:
    return [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]


def test_temperature_keeps_the_softmax_of_the_divided_logits() -> None:
    result = TemperatureStrategy([2.0, 0.5]).apply(LOGITS)
    expected = torch.softmax(LOGITS / torch.tensor([[2.0], [0.5]]), dim=-1)
    torch.testing.assert_close(torch.softmax(result, dim=-1), expected)


def test_a_row_with_temperature_zero_keeps_the_lowest_id_of_its_best_tokens() -> None:
    tied = torch.tensor([[5.0, 5.0, 1.0], [1.0, 5.0, 5.0]])
    assert kept(TemperatureStrategy([0.0, 1.0]).apply(tied)) == [[0], [0, 1, 2]]
    assert kept(TemperatureStrategy(0.0).apply(tied)) == [[0], [1]]


@pytest.mark.parametrize("temperature", [1e-38, 1e-5, 2.0])
def test_extreme_logits_stay_free_of_nan(temperature: float) -> None:
    extreme = torch.tensor([[3e38, -3e38, 0.0]])
    probabilities = torch.softmax(TemperatureStrategy(temperature).apply(extreme), dim=-1)
    assert torch.isfinite(probabilities).all()


def test_top_k_keeps_k_tokens_of_each_row_by_its_own_k() -> None:
    assert kept(TopKStrategy(2).apply(LOGITS)) == [[1, 3], [2, 3]]
    assert kept(TopKStrategy([1, 3]).apply(LOGITS)[:1]) == [[1]]
    assert len(kept(TopKStrategy([1, 3]).apply(LOGITS))[1]) == 3


@pytest.mark.parametrize("top_k", [0, -1, 4, 9999999])
def test_top_k_off_or_beyond_the_vocabulary_keeps_all(top_k: int) -> None:
    assert torch.equal(TopKStrategy(top_k).apply(LOGITS), LOGITS)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert kept(TopPStrategy(0.75).apply(logits)) == [[0, 1]]
    assert kept(TopPStrategy(0.85).apply(logits)) == [[0, 1, 2]]


def test_top_p_zero_keeps_the_best_token_and_one_keeps_all() -> None:
    assert kept(TopPStrategy(0.0).apply(LOGITS)) == [[1], [2]]
    assert torch.equal(TopPStrategy(1.0).apply(LOGITS), LOGITS)


def test_min_p_rejects_what_is_less_likely_than_its_share_of_the_best() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert kept(MinPStrategy(0.29).apply(logits)) == [[0, 1, 2]]
    assert kept(MinPStrategy(0.0).apply(logits)) == [[0, 1, 2, 3]]
    assert kept(MinPStrategy(1.0).apply(logits)) == [[0]]


def test_no_strategy_writes_into_its_argument() -> None:
    logits = LOGITS.clone()
    pipeline = SamplingPipeline(
        [TemperatureStrategy(0.7), TopKStrategy(2), TopPStrategy(0.5), MinPStrategy(0.5)]
    )
    pipeline.apply(logits)
    assert torch.equal(logits, LOGITS)


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=20),
    st.floats(0, 2),
    st.integers(-1, 30),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_at_least_one_token_survives_any_pipeline(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.tensor([row])
    (token_id,) = sample(logits, temperature, top_k, top_p, min_p).tolist()
    assert 0 <= token_id < len(row)
    if temperature == 0 or top_k == 1:
        assert row[token_id] == max(row)


def test_sample_follows_the_softmax() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1]).log().expand(20_000, 3)
    ids = sample(logits, generator=torch.Generator().manual_seed(1))
    frequencies = torch.bincount(ids, minlength=3) / len(ids)
    assert (frequencies - torch.tensor([0.6, 0.3, 0.1])).abs().max() < 0.015


def test_a_parameter_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values for 2 rows"):
        TemperatureStrategy([1.0, 1.0, 1.0]).apply(LOGITS)


@given(
    st.integers(2, 40).flatmap(
        lambda width: st.tuples(
            st.lists(
                st.lists(
                    st.sampled_from([-float("inf"), -1.5, 0.0, 1.0, 2.0]),
                    min_size=width,
                    max_size=width,
                ),
                min_size=1,
                max_size=4,
            ),
            st.integers(1, width - 1),
        )
    )
)
def test_of_equal_logits_the_lower_ids_come_first(case: tuple[list[list[float]], int]) -> None:
    rows, k = case
    values, ids = first_k(torch.tensor(rows), k)
    for row, row_values, row_ids in zip(rows, values.tolist(), ids.tolist(), strict=True):
        ordered = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        finite = [i for i in ordered if row[i] > -float("inf")]  # others are never drawn
        assert row_ids[: len(finite)] == finite
        assert row_values == [row[i] for i in ordered]


def test_top_k_keeps_the_lowest_ids_of_a_tie_at_its_end() -> None:
    logits = torch.zeros(2, 5000)
    logits[1, 4000] = 1.0
    assert kept(TopKStrategy(3).apply(logits)) == [[0, 1, 2], [0, 1, 4000]]
