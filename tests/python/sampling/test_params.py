from __future__ import annotations

from dataclasses import replace

import pytest

from astrai.sampling import SamplingParams

VOCAB_SIZE = 100

WRONG_VALUES = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", float("nan")),
    ("temperature", True),
    ("temperature", "1"),
    ("temperature", 10**400),
    ("top_p", 1.5),
    ("top_p", float("inf")),
    ("min_p", -1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", False),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e-320),
    ("repetition_penalty", -1),
    ("logit_bias", {VOCAB_SIZE: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {3: 101.0}),
    ("logit_bias", {3: float("nan")}),
    ("seed", 1.0),
    ("seed", 2**64),
    ("max_tokens", 0),
    ("max_tokens", "5"),
    ("min_tokens", -1),
    ("stop", ("a", "")),
    ("stop", "text"),
    ("stop", ("a\ud83d",)),
    ("stop", ("é" * 2049,)),
    ("stop", (1,)),
    ("stop_token_ids", (999999999,)),
    ("stop_token_ids", (-7,)),
    ("logprobs", 21),
    ("logprobs", -1),
]


@pytest.mark.parametrize(("field", "value"), WRONG_VALUES)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(
    field: str, value: object
) -> None:
    params = replace(SamplingParams(), **{field: value})
    with pytest.raises(ValueError, match=f"^{field}"):
        params.validate(VOCAB_SIZE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 0),
        ("top_k", 0),
        ("top_k", -1),
        ("top_k", 9999999),
        ("top_k", 10**30),
        ("seed", -(2**63)),
        ("seed", 2**64 - 1),
        ("logit_bias", {VOCAB_SIZE - 1: -100}),
        ("max_tokens", 10**12),
        ("logprobs", 0),
    ],
)
def test_values_at_the_edges_are_accepted(field: str, value: object) -> None:
    replace(SamplingParams(), **{field: value}).validate(VOCAB_SIZE)


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4).validate(VOCAB_SIZE)
