from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from astrai.sampling import Sampler, SamplingParams
from astrai.sampling.generator import gumbel_noise, row_keys

VOCAB_SIZE = 64
GREEDY = SamplingParams(temperature=0)


def random_logits(n_rows: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(n_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def run_steps(
    neighbours: list[SamplingParams], params: SamplingParams, n_steps: int, at: int = 0
) -> list[int]:
    """Tokens of one request, alone or among neighbours, with the same logits in each step."""
    sampler = Sampler(VOCAB_SIZE, capacity=1)
    rows = [*neighbours[:at], params, *neighbours[at:]]
    slots = [sampler.add(row, prompt_ids=[1, 2, 3]) for row in rows]
    tokens = []
    for step in range(n_steps):
        logits = random_logits(len(rows), seed=1000 + step)
        logits[at] = random_logits(1, seed=step)[0]
        tokens.append(sampler.sample(logits, slots).token_ids[at])
    return tokens


ROWS = [
    GREEDY,
    SamplingParams(seed=42),
    SamplingParams(seed=42, top_k=0, top_p=0.8),
    SamplingParams(seed=7, top_k=5, min_p=0.2, temperature=1.7),
    SamplingParams(seed=9, top_k=-1, frequency_penalty=1.5, presence_penalty=0.5),
    SamplingParams(temperature=0, repetition_penalty=1.4, logit_bias={5: 4.0, 6: -100}),
    SamplingParams(temperature=0, frequency_penalty=2.0, logprobs=3),
]


@pytest.mark.parametrize("params", ROWS)
def test_a_row_is_the_same_alone_and_at_any_place_of_any_batch(params: SamplingParams) -> None:
    alone = run_steps([], params, 12)
    neighbours = [*ROWS, SamplingParams(), SamplingParams(top_k=3)]
    assert run_steps(neighbours, params, 12, at=0) == alone
    assert run_steps(neighbours, params, 12, at=4) == alone


def test_a_seed_repeats_and_another_seed_differs() -> None:
    first = run_steps([], SamplingParams(seed=1), 20)
    assert run_steps([], SamplingParams(seed=1), 20) == first
    assert run_steps([], SamplingParams(seed=2), 20) != first


def test_requests_without_a_seed_differ_from_each_other() -> None:
    assert run_steps([], SamplingParams(), 30) != run_steps([], SamplingParams(), 30)


def test_greedy_takes_the_lowest_id_on_a_tie_beside_sampled_rows() -> None:
    sampler = Sampler(4)
    slots = [sampler.add(GREEDY), sampler.add(SamplingParams()), sampler.add(GREEDY)]
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0]] * 3)
    result = sampler.sample(logits, slots)
    assert (result.token_ids[0], result.token_ids[2]) == (1, 1)


def test_top_k_one_is_greedy() -> None:
    assert run_steps([], SamplingParams(top_k=1), 20) == run_steps([], GREEDY, 20)


@pytest.mark.parametrize("top_k", [0, -1, VOCAB_SIZE, 9999999])
def test_top_k_off_is_the_whole_vocabulary(top_k: int) -> None:
    expected = run_steps([], SamplingParams(seed=3, top_k=0), 20)
    assert run_steps([], SamplingParams(seed=3, top_k=top_k), 20) == expected


def draw_frequencies(params: SamplingParams, logits: torch.Tensor, n: int) -> dict[int, float]:
    sampler = Sampler(logits.shape[-1])
    slots = [sampler.add(params) for _ in range(n)]
    counts = Counter(sampler.sample(logits.expand(n, -1).clone(), slots).token_ids)
    return {token_id: count / n for token_id, count in counts.items()}


@pytest.mark.parametrize("top_k", [0, 4])
def test_draws_follow_the_softmax_of_the_scaled_logits(top_k: int) -> None:
    probabilities = [0.4, 0.3, 0.2, 0.1]
    logits = torch.tensor([[p**2 for p in probabilities] + [0.0]]).log().clamp_min(-1e4)
    params = SamplingParams(temperature=2.0, top_k=top_k)
    frequencies = draw_frequencies(params, logits, 20_000)
    assert set(frequencies) <= {0, 1, 2, 3}
    for token_id, probability in enumerate(probabilities):
        assert frequencies[token_id] == pytest.approx(probability, abs=0.015)


def test_filters_apply_in_order_top_k_then_top_p_then_min_p() -> None:
    # After top-k 3 the shares are 5/9, 3/9, 1/9: top-p 0.6 keeps two; before it three were kept.
    logits = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()
    assert set(draw_frequencies(SamplingParams(top_k=3, top_p=0.88), logits, 2000)) == {0, 1}
    assert set(draw_frequencies(SamplingParams(top_k=0, top_p=0.88), logits, 2000)) == {0, 1, 2}
    assert set(draw_frequencies(SamplingParams(top_k=0, min_p=0.7), logits, 2000)) == {0}


def test_noise_of_a_token_does_not_depend_on_its_rank() -> None:
    keys = row_keys(*(torch.tensor([11, 12]).numpy().astype(t) for t in ("uint64", "int64")))
    ids = torch.tensor([[3, 9, 1], [9, 1, 3]])
    noise = gumbel_noise(keys, ids)
    assert noise[0, 1] == gumbel_noise(keys[:1], torch.tensor([[9]]))[0, 0]
    assert noise[1, 0] != noise[0, 1]


def test_uniform_noise_has_the_mean_and_spread_of_a_gumbel() -> None:
    keys = row_keys(*(torch.arange(50).numpy().astype(t) for t in ("uint64", "int64")))
    noise = gumbel_noise(keys, torch.arange(2000)[None, :])
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)  # Euler's constant
    assert noise.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.02)
    neighbours = torch.corrcoef(noise)[0, 1:].abs().max().item()
    assert neighbours < 0.1


def test_frequency_and_presence_count_generated_tokens_only() -> None:
    sampler = Sampler(3)
    slot = sampler.add(
        SamplingParams(temperature=0, frequency_penalty=1.0, presence_penalty=0.5), prompt_ids=[0]
    )
    logits = torch.tensor([[3.0, 2.0, 0.0]])
    # 0 falls to 1.5 after one use, 1 to 0.5 after one, then 0 to 0.5 and ties with 1.
    tokens = [sampler.sample(logits.clone(), [slot]).token_ids[0] for _ in range(4)]
    assert tokens == [0, 1, 0, 0]


def test_repetition_penalty_looks_at_the_prompt_and_shrinks_either_sign() -> None:
    sampler = Sampler(3)
    slot = sampler.add(SamplingParams(temperature=0, repetition_penalty=2.0), prompt_ids=[0, 0])
    assert sampler.sample(torch.tensor([[3.0, 2.0, 0.0]]), [slot]).token_ids == [1]
    assert sampler.sample(torch.tensor([[-1.0, -9.0, -1.5]]), [slot]).token_ids == [2]


def test_many_distinct_tokens_are_all_counted() -> None:
    sampler = Sampler(500)
    slot = sampler.add(SamplingParams(temperature=0, presence_penalty=2.0))
    tokens = [sampler.sample(torch.zeros(1, 500), [slot]).token_ids[0] for _ in range(500)]
    assert tokens == list(range(500))


def test_logit_bias_forces_and_bans() -> None:
    sampler = Sampler(4)
    forced = sampler.add(SamplingParams(temperature=0, logit_bias={3: 100}))
    banned = sampler.add(SamplingParams(temperature=0, logit_bias={0: -100}))
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0]] * 2)
    assert sampler.sample(logits, [forced, banned]).token_ids == [3, 1]


def test_end_ids_are_masked_until_min_tokens_are_generated() -> None:
    sampler = Sampler(3)
    slot = sampler.add(SamplingParams(temperature=0, min_tokens=2), end_ids=[0])
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    tokens = [sampler.sample(logits.clone(), [slot]).token_ids[0] for _ in range(3)]
    assert tokens == [1, 1, 0]


def test_logprobs_are_those_of_the_unmodified_logits() -> None:
    sampler = Sampler(VOCAB_SIZE)
    params = SamplingParams(seed=1, temperature=0.3, top_k=2, logit_bias={5: 50}, logprobs=4)
    slots = [sampler.add(GREEDY), sampler.add(params)]
    logits = random_logits(2)
    expected = torch.log_softmax(logits[1].double(), dim=-1)
    result = sampler.sample(logits, slots)
    assert result.logprobs is not None
    none, entry = result.logprobs
    assert none is None and entry is not None
    assert entry.token_id == result.token_ids[1]
    assert entry.logprob == pytest.approx(expected[entry.token_id].item(), abs=1e-5)
    values, ids = expected.topk(4)
    assert [token_id for token_id, _ in entry.top] == ids.tolist()
    assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_logprobs_stay_finite_beside_masked_logits() -> None:
    sampler = Sampler(3)
    slot = sampler.add(SamplingParams(temperature=0, logprobs=3))
    result = sampler.sample(torch.tensor([[0.0, float("-inf"), 1.0]]), [slot])
    assert result.logprobs is not None and result.logprobs[0] is not None
    assert all(math.isfinite(value) for _, value in result.logprobs[0].top)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=1, frequency_penalty=1.0)])
def test_a_row_without_finite_logits_is_faulty_and_its_neighbours_are_not(
    wrong: float, params: SamplingParams
) -> None:
    sampler = Sampler(VOCAB_SIZE)
    slots = [sampler.add(SamplingParams(seed=5)), sampler.add(params), sampler.add(GREEDY)]
    logits = random_logits(3)
    clean = Sampler(VOCAB_SIZE)
    clean_slots = [clean.add(SamplingParams(seed=5)), clean.add(GREEDY)]
    expected = clean.sample(logits[[0, 2]].clone(), clean_slots).token_ids
    logits[1, 7] = wrong
    result = sampler.sample(logits, slots)
    assert result.faulty_rows == {1}
    assert [result.token_ids[0], result.token_ids[2]] == expected


def test_bfloat16_logits_are_sampled_in_float32() -> None:
    sampler = Sampler(VOCAB_SIZE)
    slot = sampler.add(SamplingParams(temperature=0, logprobs=0))
    logits = random_logits(1).bfloat16()
    result = sampler.sample(logits, [slot])
    assert result.token_ids == [int(logits[0].float().argmax())]
    assert result.logprobs is not None and result.logprobs[0] is not None
    expected = torch.log_softmax(logits[0].double(), dim=-1).max().item()
    assert result.logprobs[0].logprob == pytest.approx(expected, abs=1e-5)


def test_a_slot_that_is_used_again_knows_nothing_of_its_last_request() -> None:
    sampler = Sampler(3, capacity=1)
    first = sampler.add(SamplingParams(temperature=0, frequency_penalty=2.0, logprobs=1))
    sampler.sample(torch.tensor([[1.0, 0.5, 0.0]]), [first])
    sampler.remove(first)
    again = sampler.add(GREEDY)
    assert again == first
    result = sampler.sample(torch.tensor([[1.0, 0.5, 0.0]]), [again])
    assert result.token_ids == [0] and result.logprobs is None
