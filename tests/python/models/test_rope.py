"""RoPE settings under every spelling, and the frequencies that follow from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from astrai.models.rope import RopeConfig, cos_sin_table, inverse_frequencies
from astrai.models.rope_hf import rope_from_hf
from astrai.models.rotary import RotaryEmbedding

HEAD_DIM = 64
_ORIGINAL = "original_max_position_embeddings"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * n for n in range(HEAD_DIM // 2)],
    "long_factor": [2.0 + 0.75 * n for n in range(HEAD_DIM // 2)],
    "original_max_position_embeddings": 4096,
}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    LLAMA3,
    YARN,
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    {**YARN, "attention_factor": 1.5},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    {**YARN, "truncate": False},
    {**YARN, "mscale": 0.7},
    {**YARN, "partial_rotary_factor": 0.5},
    {**YARN, "beta_fast": 40.0, "beta_slow": 0.5, "truncate": False, "partial_rotary_factor": 0.75},
    {**LLAMA3, "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0},
    {**LLAMA3, "original_max_position_embeddings": 512, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 8, "partial_rotary_factor": 0.25},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5},
    LONGROPE,
    {**LONGROPE, "attention_factor": 1.25},
    {**LONGROPE, "factor": 32.0},
]


def hf_config(scaling: dict[str, Any], theta: float = 500000.0) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=16384,
        rope_parameters={**scaling, "rope_theta": theta},
    )


@pytest.mark.parametrize("text_len", [None, 100, 4096, 4097, 16384, 30000])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_are_those_of_transformers(
    scaling: dict[str, Any], text_len: int | None
) -> None:
    expected, expected_scale = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        hf_config(scaling), device=torch.device("cpu"), seq_len=text_len
    )
    config = {"rope_theta": 500000.0, "rope_scaling": scaling, "max_position_embeddings": 16384}
    rope = rope_from_hf(config)
    frequencies, scale = inverse_frequencies(rope, HEAD_DIM, 16384, text_len)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert scale == pytest.approx(expected_scale)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_old_and_new_spellings_mean_the_same(scaling: dict[str, Any]) -> None:
    old_style = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
    context = {"max_position_embeddings": 16384}
    old = rope_from_hf({**context, "rope_theta": 9000.0, "rope_scaling": old_style})
    new = rope_from_hf({**context, "rope_parameters": {**scaling, "rope_theta": 9000.0}})
    both = rope_from_hf({**context, "rope_theta": 9000.0, "rope_scaling": {**scaling, **old_style}})
    assert old == new == both
    assert new.theta == 9000.0


def test_absent_or_null_scaling_is_the_plain_one() -> None:
    assert rope_from_hf({}) == rope_from_hf({"rope_scaling": None}) == RopeConfig()
    default = {"rope_type": "default", "rope_theta": 7.0}
    assert rope_from_hf({"rope_parameters": default}) == RopeConfig(theta=7.0)


def test_llama3_keeps_blends_and_divides() -> None:
    plain, _ = inverse_frequencies(RopeConfig(theta=500000.0), HEAD_DIM, 8192)
    rope = rope_from_hf({"rope_theta": 500000.0, "rope_scaling": LLAMA3})
    scaled, _ = inverse_frequencies(rope, HEAD_DIM, 131072)
    ratio = plain / scaled
    assert torch.all(ratio[:15] == 1)
    assert torch.all((ratio[15:18] > 1) & (ratio[15:18] < 32))
    torch.testing.assert_close(ratio[18:], torch.full((14,), 32.0))


@pytest.mark.parametrize(
    ("extra", "factor"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.25),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
    ],
)
def test_yarn_attention_factor_scales_cos_and_sin(extra: dict[str, float], factor: float) -> None:
    rope = rope_from_hf({"rope_scaling": {**YARN, **extra}})
    table = cos_sin_table(rope, HEAD_DIM, 16384, 4)
    torch.testing.assert_close(table[0, :, 0], torch.full((32,), factor))
    torch.testing.assert_close(table.square().sum(-1).sqrt(), torch.full((4, 32), factor))


def test_yarn_factor_may_follow_from_the_two_contexts() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 4096}
    rope = rope_from_hf({"rope_scaling": scaling, "max_position_embeddings": 16384})
    assert rope.factor == 4.0


@pytest.mark.parametrize("context", [[1], "16384", -1, True, 2**2000, math.inf])
def test_a_factor_follows_from_no_context_that_is_none(context: Any) -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 4096}
    with pytest.raises(ValueError, match="max_position_embeddings must be a number above 0"):
        rope_from_hf({"rope_scaling": scaling, "max_position_embeddings": context})


def test_dynamic_is_plain_within_the_context_and_slower_beyond() -> None:
    rope = rope_from_hf({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})
    plain, _ = inverse_frequencies(RopeConfig(), HEAD_DIM, 1024)
    within, _ = inverse_frequencies(rope, HEAD_DIM, 1024, text_len=1024)
    beyond, _ = inverse_frequencies(rope, HEAD_DIM, 1024, text_len=2048)
    assert torch.equal(within, plain)
    assert beyond[0] == plain[0]
    assert torch.all(beyond[1:] < plain[1:])


@pytest.mark.parametrize("name", ["longrope", "dynamic"])
def test_a_text_beyond_the_switch_reads_rows_of_its_own(name: str) -> None:
    scaling = {"longrope": LONGROPE, "dynamic": {"rope_type": "dynamic", "factor": 4.0}}[name]
    config = {"max_position_embeddings": 6000, "rope_scaling": scaling}
    rope = rope_from_hf(config)
    switch_len = {"longrope": 4096, "dynamic": 6000}[name]
    rotary = RotaryEmbedding(HEAD_DIM, 6100, rope, 6000)
    assert rotary.switch_len == switch_len
    short = cos_sin_table(rope, HEAD_DIM, 6000, switch_len)
    long = cos_sin_table(rope, HEAD_DIM, 6000, 6100, text_len=6100)
    assert torch.equal(rotary(torch.arange(switch_len)), short)
    assert torch.equal(rotary(torch.arange(6100) + switch_len), long)
    assert not torch.equal(short, long[:switch_len])
    assert RotaryEmbedding(HEAD_DIM, switch_len, rope, 6000).switch_len is None


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({}, 16384),
        (LLAMA3, 16384),
        (LONGROPE, 16384),
        ({"rope_type": "linear", "factor": 2.5}, 40960),
        ({"rope_type": "dynamic", "factor": 4.0}, 65536),
        (YARN, 16384),
        ({"rope_type": "yarn", "factor": 4.0}, 65536),
        ({**YARN, "factor": 10.0}, 40960),
        ({**YARN, "factor": 2.0}, 16384),  # the file says that more was trained
    ],
)
def test_scaling_tells_how_long_texts_may_be(scaling: dict[str, Any], context: int) -> None:
    rope = rope_from_hf({"rope_scaling": scaling, "max_position_embeddings": 16384})
    assert rope.context_len(16384) == context


def test_gguf_divisors_divide() -> None:
    divisors = tuple(float(n + 1) for n in range(HEAD_DIM // 2))
    plain, _ = inverse_frequencies(RopeConfig(), HEAD_DIM, 64)
    divided, _ = inverse_frequencies(RopeConfig(frequency_divisors=divisors), HEAD_DIM, 64)
    torch.testing.assert_close(divided * torch.tensor(divisors), plain)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "su"}}, "su"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": math.nan}}, "factor"),
        ({"rope_scaling": 3}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor must be at least 1"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "layer type"),
        ({"rope_parameters": {"other_attention": {"rope_theta": 1.0}}}, "other_attention"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "proportional"),
        ({"rope_scaling": {"rope_type": ["linear"], "factor": 2.0}}, "linear"),
        ({"rope_scaling": {**YARN, "llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}}, "beta_fast"),
        ({"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "factor is no field"),
        ({"rope_scaling": {**YARN, "truncate": 1}}, "truncate"),
        ({"rope_scaling": {**YARN, "mscale": True}}, "mscale"),
        ({"rope_scaling": {**YARN, "beta_fast": 1, "beta_slow": 2}}, "beta_fast.*beta_slow"),
        ({"rope_scaling": {**YARN, _ORIGINAL: 10.5}}, "whole number"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "high_freq_factor.*low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "low_freq_factor is missing"),
        ({"rope_scaling": {**LONGROPE, "short_factor": [1.0, None]}}, "short_factor"),
        ({"rope_scaling": {**LONGROPE, "long_factor": [1.0, 0.0]}}, "long_factor"),
        ({"rope_scaling": {**YARN, "type": "linear"}}, "rope_type 'yarn' and type 'linear'"),
        ({"rope_scaling": YARN, "rope_parameters": LLAMA3}, "rope_scaling and rope_parameters"),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, "rope_theta is 5"),
        ({"rope_scaling": YARN, _ORIGINAL: 2048}, "original_max_position_embeddings is 2048"),
        (
            {"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.5",
        ),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_theta": "big"}, "rope_theta"),
    ],
)
def test_what_is_not_computed_is_an_error_that_names_it(config: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        rope_from_hf(config)


def test_table_is_cos_and_sin_of_position_times_frequency() -> None:
    rotary = RotaryEmbedding(HEAD_DIM, 16)
    frequencies, _ = inverse_frequencies(RopeConfig(), HEAD_DIM, 16)
    assert rotary.freqs_cis.shape == (16, HEAD_DIM // 2, 2)
    torch.testing.assert_close(rotary.freqs_cis[7, :, 0], (7 * frequencies).cos())
    torch.testing.assert_close(rotary.freqs_cis[7, :, 1], (7 * frequencies).sin())


def test_lookup_has_the_shape_of_the_positions() -> None:
    rotary = RotaryEmbedding(HEAD_DIM, 16)
    assert rotary(torch.tensor([3, 3, 15])).shape == (3, 32, 2)
    assert rotary(torch.tensor([[3, 1], [0, 2]])).shape == (2, 2, 32, 2)
    assert torch.equal(rotary(torch.tensor([3]))[0], rotary.freqs_cis[3])


@pytest.mark.parametrize("cast", ["half", "bfloat16", "to"])
def test_table_stays_float32_when_the_model_is_cast(cast: str) -> None:
    rotary = RotaryEmbedding(HEAD_DIM, 16)
    before = rotary.freqs_cis.clone()
    module = torch.nn.Sequential(rotary, torch.nn.Linear(2, 2))
    module = module.to(torch.float16) if cast == "to" else getattr(module, cast)()
    assert module[1].weight.dtype != torch.float32
    assert torch.equal(rotary.freqs_cis, before)
