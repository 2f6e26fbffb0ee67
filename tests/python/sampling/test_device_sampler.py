"""The device's sampler: its words and lists against what the CPU's sampler does with the same
slots, and, on a GPU, the same draws."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from astrai.sampling import Sampler, SamplingParams
from astrai.sampling.device_edits import edit_lists
from astrai.sampling.device_sampler import (
    WORDS_PER_ROW,
    DeviceSampler,
    RowDraw,
    RowParams,
    token_logprobs,
)
from astrai.sampling.logprobs import compute_logprobs
from astrai.sampling.penalties import LogitEdits, apply_edits

VOCAB_SIZE = 700


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0, 0.3, 1.0, 1.7]),
        top_p=rng.choice([1.0, 0.9, 0.4, 0.0]),
        top_k=rng.choice([0, 1, 7, 50, 600, 10**6]),
        min_p=rng.choice([0.0, 0.02]),
        presence_penalty=rng.choice([0.0, 0.0, 0.7]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.4]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        logit_bias=rng.choice([None, None, {3: 4.5, 11: -100, 5: 0.25}]),
        min_tokens=rng.choice([0, 0, 2]),
        seed=rng.choice([rng.randrange(2**63), -rng.randrange(2**62), 2**64 - 1]),
        logprobs=rng.choice([None, None, 0, 5]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_lists_change_the_logits_as_the_cpu_does(seed: int) -> None:
    rng = random.Random(seed)
    logits = torch.randn(6, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    edits: list[LogitEdits | None] = []
    n_generated = []
    for _ in range(6):
        params = random_params(rng)
        edit = LogitEdits(params, [rng.randrange(20) for _ in range(9)], (1, 3, 4))
        for _ in range(rng.randrange(4)):
            edit.count(rng.randrange(20))
        n_generated.append(edit.n_generated)
        edits.append(edit if LogitEdits.needed(params) else None)

    lists = edit_lists(edits, n_generated, torch.device("cpu"))

    found = logits.clone()
    for row in range(6):
        begin, end = lists.indptr[row], lists.indptr[row + 1]
        ids = lists.ids[begin:end].long()
        assert len(set(ids.tolist())) == len(ids), "each id once"
        repetition, frequency, presence = lists.penalties[row].tolist()
        x = found[row, ids] + lists.bias[begin:end]
        counts = lists.counts[begin:end]
        turned = torch.where(x > 0, x / repetition, x * repetition)
        turned = turned - counts * frequency - (counts > 0) * presence
        found[row, ids] = torch.where(counts >= 0, turned, x)
    rows = [row for row in range(6) if edits[row] is not None]
    apply_edits(logits, rows, [edit for edit in edits if edit is not None])
    torch.testing.assert_close(found, logits)


class _HostSampler(DeviceSampler):
    """Without the workspace, which needs a build with CUDA."""

    def __init__(self) -> None:
        Sampler.__init__(self, VOCAB_SIZE)
        self._generation = np.zeros(64, np.int64)


def test_parameters_arrive_in_their_columns_and_padding_rows_are_greedy() -> None:
    sampler = _HostSampler()
    slots = [
        sampler.add(SamplingParams(temperature=0.5, top_p=0.25, min_p=0.125, top_k=9, seed=-1)),
        sampler.add(SamplingParams(temperature=0, seed=5)),
        sampler.add(SamplingParams(temperature=1.5, top_k=0, seed=7)),
    ]
    words = np.full(WORDS_PER_ROW * 4, -7, np.int32)

    plans = [sampler.plan(slots, words, 4) for _ in range(3)]

    params = RowParams.of(torch.from_numpy(words))
    assert params.seeds.tolist() == [-1, 5, 7, 0]
    assert params.positions.tolist() == [2, 2, 2, 0]
    assert params.temperature.tolist() == [0.5, 0.0, 1.5, 0.0]
    assert params.top_p.tolist()[:1] == [0.25] and params.min_p.tolist()[:1] == [0.125]
    assert params.top_k.tolist() == [9, 50, VOCAB_SIZE, 1]
    assert [plan.has_wide_rows for plan in plans] == [True] * 3
    assert all(plan.is_plain for plan in plans)
    assert not sampler.plan(slots[:2], words[: 2 * WORDS_PER_ROW]).has_wide_rows


def test_only_rows_that_ask_make_a_step_more_than_plain() -> None:
    sampler = _HostSampler()
    plain = sampler.add(SamplingParams())
    asks = sampler.add(SamplingParams(logprobs=3))
    edited = sampler.add(SamplingParams(logit_bias={1: 2.0}))
    words = np.empty(WORDS_PER_ROW * 2, np.int32)
    assert sampler.plan([plain, asks], words).n_top == [None, 3]
    plan = sampler.plan([edited, plain], words)
    assert plan.edits is not None
    assert [edit is not None for edit in plan.edits] == [True, False]
    assert plan.n_generated == [0, 1]


def test_a_draw_lies_in_one_tensor() -> None:
    words = torch.zeros(20, dtype=torch.int32)
    out = RowDraw.of(words, 6)
    out.token_ids.fill_(7)
    out.is_faulty.fill_(1)
    assert out.words.data_ptr() == words.data_ptr() and len(out.words) == 8
    assert words.tolist() == [7] * 6 + [0x01010101, 0x0101] + [0] * 12


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(6))
def test_draws_and_logprobs_are_those_of_the_cpu(seed: int) -> None:
    from astrai.extension import ops

    device = torch.device("cuda")
    rng = random.Random(seed)
    on_host, on_device = Sampler(VOCAB_SIZE), DeviceSampler(VOCAB_SIZE, device, 64)
    all_params = [random_params(rng) for _ in range(40)]
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(12)] for _ in all_params]
    pairs = list(zip(all_params, prompts, strict=True))
    host_slots = [on_host.add(params, prompt, (1, 2)) for params, prompt in pairs]
    device_slots = [on_device.add(params, prompt, (1, 2)) for params, prompt in pairs]
    generator = torch.Generator().manual_seed(seed)
    n = len(pairs)
    for _ in range(5):
        logits = 3 * torch.randn(n, VOCAB_SIZE, generator=generator)
        logits[rng.randrange(n), 5] = float("nan")
        words = np.zeros(WORDS_PER_ROW * n, np.int32)
        plan = on_device.plan(device_slots, words)
        out = RowDraw.of(torch.empty(RowDraw.n_words(n), dtype=torch.int32, device=device), n)
        logits_there = logits.to(device)
        on_device.draw(
            logits_there,
            RowParams.of(torch.from_numpy(words).to(device)),
            out,
            plan.has_wide_rows,
            on_device.special_rows(plan, n),
        )
        ids = out.token_ids.tolist()
        raw_logprobs = compute_logprobs(logits)
        expected = on_host.sample(logits, host_slots)
        sound = [row for row in range(n) if row not in expected.faulty_rows]
        assert set(out.is_faulty.nonzero().flatten().tolist()) == expected.faulty_rows
        assert [ids[row] for row in sound] == [expected.token_ids[row] for row in sound]
        on_device.note(plan, ids, expected.faulty_rows)
        assert plan.n_top is not None and expected.logprobs is not None
        tops = ops.top_logprobs(logits_there, out.token_ids, 5)
        entries = token_logprobs(plan.n_top, ids, *(part.tolist() for part in tops))
        for row in sound:
            ours, theirs = entries[row], expected.logprobs[row]
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert ours.logprob == pytest.approx(float(raw_logprobs[row, ids[row]]), abs=1e-4)
                assert [i for i, _ in ours.top] == [i for i, _ in theirs.top]
