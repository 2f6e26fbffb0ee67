"""The device's sampler: its words and lists against what the CPU's sampler does with the same
slots, and, on a GPU, the same draws."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from astrai.kvcache import HostStaging
from astrai.sampling import Sampler, SamplingParams
from astrai.sampling.device_edits import DeviceEdits, edit_capacity, edit_list_bytes
from astrai.sampling.device_sampler import (
    WORDS_PER_ROW,
    DeviceSampler,
    RowDraw,
    RowParams,
    RowPlan,
    token_logprobs,
)
from astrai.sampling.logprobs import compute_logprobs
from astrai.sampling.penalties import LogitEdits, apply_edits
from edit_lists import count_drawn, edited

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


class Text:
    """A request that draws, as the host and a list on the device count its tokens."""

    def __init__(self, rng: random.Random) -> None:
        self.params = random_params(rng)
        prompt_ids = [rng.randrange(20) for _ in range(9)]
        self.edit = LogitEdits(self.params, prompt_ids, rng.choice([(1, 3, 4), (4, 1, 3, 1, 1)]))
        self.row = -1
        self.n_drawn = 0
        self.unheard: list[int] = []  # drawn, and not known to the host


@pytest.mark.parametrize("seed", range(20))
def test_lists_that_grow_on_the_device_change_the_logits_as_the_cpu_does(seed: int) -> None:
    """Requests take rows, draw with the host one step behind, leave, are sent back to other rows
    and to the same; what they draw is counted where the device would."""
    rng, n_rows, n_ids = random.Random(seed), 6, 40
    lists = DeviceEdits(n_rows, n_ids, torch.device("cpu"))
    texts: list[Text] = []
    n_checked = n_unmasked = 0
    for step in range(60):
        logits = 4 * torch.randn(n_rows, n_ids, generator=torch.Generator().manual_seed(step))
        if rng.random() < 0.3:  # the host has caught up: some leave their rows
            for text in texts:
                while text.unheard:
                    text.edit.count(text.unheard.pop(0))
                text.row = -1 if rng.random() < 0.3 else text.row
            texts = [text for text in texts if rng.random() < 0.9]
        running = [text for text in texts if text.row >= 0]
        free = sorted(set(range(n_rows)) - {text.row for text in running})
        waiting = [text for text in texts if text.row < 0]
        for row in rng.sample(free, rng.randrange(len(free) + 1)):
            text = waiting.pop() if waiting else Text(rng)
            text.row = row
            texts += [] if text in texts else [text]
            running.append(text)
        drawing = [t for t in running if LogitEdits.needed(t.params) and rng.random() < 0.9]
        rows = torch.full((n_rows,), -1, dtype=torch.int32)
        for text in drawing:
            lists.prepare(text.row, text.edit, text.n_drawn)
            rows[text.row] = text.row
        found = edited(logits, lists.of(rows))
        drawn = found.argmax(-1).tolist()
        count_drawn(lists.of(rows), drawn, [False] * n_rows)

        for text in drawing:  # the same from all that was drawn
            known = copy.deepcopy(text.edit)
            for token_id in text.unheard:
                known.count(token_id)
            expected = logits.clone()
            apply_edits(expected, [text.row], [known])
            torch.testing.assert_close(found[text.row], expected[text.row])
            n_checked += 1
            n_unmasked += bool(text.params.min_tokens) and text.n_drawn == text.params.min_tokens
            text.n_drawn += 1
            text.unheard.append(drawn[text.row])
            while len(text.unheard) > 1:
                text.edit.count(text.unheard.pop(0))
    assert n_checked > 80 and n_unmasked > 0


def test_a_list_that_the_host_cannot_know_is_not_sent() -> None:
    lists = DeviceEdits(2, 40, torch.device("cpu"))
    edit = LogitEdits(SamplingParams(presence_penalty=1.0), [1], ())
    lists.prepare(0, edit, 0)
    lists.prepare(0, edit, 1)
    with pytest.raises(RuntimeError, match="2 tokens drawn, of which the host knows 0"):
        lists.prepare(1, edit, 2)


def test_a_list_that_is_too_long_is_not_sent_in_part() -> None:
    lists = DeviceEdits(2, 4, torch.device("cpu"))
    fitting, too_long = (
        LogitEdits(SamplingParams(presence_penalty=1.0, logit_bias=dict.fromkeys(ids, 2.0)), [], ())
        for ids in (range(3, 5), range(5, 10))
    )
    lists.prepare(1, fitting, 0)
    with pytest.raises(RuntimeError, match="changes 5 logits; a list holds 4"):
        lists.prepare(1, too_long, 0)
    lists.prepare(1, fitting, 0)
    found = edited(torch.zeros(1, 12), lists.of(torch.tensor([1], dtype=torch.int32)))
    assert found[0].nonzero().flatten().tolist() == [3, 4]


def test_the_capacity_holds_the_longest_text_and_some_bias() -> None:
    assert edit_capacity(128256, 8192) == 8192 + 1024
    assert edit_capacity(700, 8192) == 700
    assert edit_list_bytes(700, 8192) == 16 + 12 * 700
    params = SamplingParams(
        presence_penalty=1.0, min_tokens=1, logit_bias=dict.fromkeys(range(9), 1.0)
    )
    assert LogitEdits.most(params, 100, 2, 50) == 161
    assert LogitEdits.most(SamplingParams(min_tokens=1), 100, 2, 50) == 2


class _HostSampler(DeviceSampler):
    """Without the workspace, which needs a build with CUDA."""

    def __init__(self, capacity: int = VOCAB_SIZE) -> None:
        Sampler.__init__(self, VOCAB_SIZE)
        self._generation = np.zeros(64, np.int64)
        self._rows = None
        self._device = torch.device("cpu")
        self._lists = DeviceEdits(8, capacity, self._device)


def test_parameters_arrive_in_their_columns_and_padding_rows_are_greedy() -> None:
    sampler = _HostSampler()
    slots = [
        sampler.add(SamplingParams(temperature=0.5, top_p=0.25, min_p=0.125, top_k=9, seed=-1)),
        sampler.add(SamplingParams(temperature=0, seed=5)),
        sampler.add(SamplingParams(temperature=1.5, top_k=0, seed=7)),
    ]
    words = np.full(WORDS_PER_ROW * 4, -7, np.int32)

    plans = [sampler.plan(slots, [3, 0, 1], words, 4) for _ in range(3)]

    params = RowParams.of(torch.from_numpy(words))
    assert params.seeds.tolist() == [-1, 5, 7, 0]
    assert params.positions.tolist() == [2, 2, 2, 0]
    assert params.temperature.tolist() == [0.5, 0.0, 1.5, 0.0]
    assert params.top_p.tolist()[:1] == [0.25] and params.min_p.tolist()[:1] == [0.125]
    assert params.top_k.tolist() == [9, 50, VOCAB_SIZE, 1]
    assert params.edit_rows.tolist() == [-1] * 4
    assert [plan.has_wide_rows for plan in plans] == [True] * 3
    assert all(plan.is_plain for plan in plans)
    assert not sampler.plan(slots[:2], [3, 0], words[: 2 * WORDS_PER_ROW]).has_wide_rows


def test_a_slot_that_goes_to_another_request_brings_its_parameters() -> None:
    sampler = _HostSampler()
    words = np.empty(WORDS_PER_ROW * 2, np.int32)
    slots = [sampler.add(SamplingParams(seed=1)), sampler.add(SamplingParams(seed=2, top_k=3))]
    plans = [sampler.plan(slots, [0, 1], words) for _ in range(2)]
    sampler.remove(slots[1])
    assert sampler.add(SamplingParams(seed=9, top_k=7, logprobs=2)) == slots[1]

    plans.append(sampler.plan(slots, [0, 1], words))

    params = RowParams.of(torch.from_numpy(words))
    assert params.seeds.tolist() == [1, 9] and params.positions.tolist() == [2, 0]
    assert params.top_k.tolist() == [50, 7]
    assert [plan.n_top for plan in plans] == [None, None, [None, 2]]
    assert [plan.generations.tolist() for plan in plans] == [[0, 0], [0, 0], [0, 1]]


def test_only_rows_that_ask_make_a_step_more_than_plain() -> None:
    sampler = _HostSampler()
    plain = sampler.add(SamplingParams())
    asks = sampler.add(SamplingParams(logprobs=3))
    biased = sampler.add(SamplingParams(logit_bias={1: 2.0}))
    words = np.empty(WORDS_PER_ROW * 2, np.int32)
    assert sampler.plan([plain, asks], [0, 1], words).n_top == [None, 3]
    plan = sampler.plan([biased, plain], [5, 0], words)
    assert plan.is_plain and [row for row, _ in plan.edits] == [0]
    assert RowParams.of(torch.from_numpy(words)).edit_rows.tolist() == [5, -1]


def test_edits_that_cannot_be_made_ready_are_an_error_of_their_row_alone() -> None:
    sampler = _HostSampler(capacity=4)
    biases = ({1: 2.0}, dict.fromkeys(range(5), 1.0), {7: 1.0})
    slots = [sampler.add(SamplingParams(logit_bias=bias)) for bias in biases]
    words = np.empty(WORDS_PER_ROW * 3, np.int32)

    plan = sampler.plan(slots, [5, 0, 2], words)
    completed_rows, errors = sampler.note(plan, [4, 4, 4], frozenset())

    assert RowParams.of(torch.from_numpy(words)).edit_rows.tolist() == [5, -1, 2]
    assert not completed_rows and errors.keys() == {1}
    assert "changes 5 logits; a list holds 4" in errors[1]
    assert [sampler._edits[slot].n_generated for slot in slots] == [1, 0, 1]


def test_masks_travel_for_the_rows_that_follow_a_grammar() -> None:
    sampler = _HostSampler()
    of_slots = np.arange(6 * 22, dtype=np.int32).reshape(6, 22)
    sampler._grammars = SimpleNamespace(masks=lambda slots: of_slots[slots])  # type: ignore[assignment]
    plan = RowPlan([4, 5, 2], np.zeros(3, np.int64), False, [], None, [0, 2])

    masks = sampler.masks(plan, 4, HostStaging(torch.device("cpu")))

    assert masks is not None
    assert masks.bitmask.tolist() == of_slots[[4, 2]].tolist()
    assert masks.bitmask_rows.tolist() == [0, -1, 1, -1]


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
    """With the host one step behind, and requests that change their rows."""
    from astrai.extension import ops

    device = torch.device("cuda")
    rng = random.Random(seed)
    on_host, on_device = Sampler(VOCAB_SIZE), DeviceSampler(VOCAB_SIZE, device, 64, 1024)
    all_params = [random_params(rng) for _ in range(40)]
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(12)] for _ in all_params]
    pairs = list(zip(all_params, prompts, strict=True))
    host_slots = [on_host.add(params, prompt, (1, 2)) for params, prompt in pairs]
    device_slots = [on_device.add(params, prompt, (1, 2)) for params, prompt in pairs]
    generator = torch.Generator().manual_seed(seed)
    n = len(pairs)
    last_ids = torch.zeros(64, dtype=torch.int32, device=device)
    pool_rows = rng.sample(range(64), n)
    unheard = None
    for step in range(9):
        if step in (4, 5):  # all are sent back, once their tokens are known
            on_device.note(*unheard)  # type: ignore[misc]
            unheard = None
            pool_rows = rng.sample(range(64), n)
        logits = 3 * torch.randn(n, VOCAB_SIZE, generator=generator)
        logits[:, :12] += 4 * torch.rand(12, generator=generator)  # some come again
        words = np.zeros(WORDS_PER_ROW * n, np.int32)
        plan = on_device.plan(device_slots, pool_rows, words)
        out = RowDraw.of(torch.empty(RowDraw.n_words(n), dtype=torch.int32, device=device), n)
        logits_there = logits.to(device)
        params = RowParams.of(torch.from_numpy(words).to(device))
        on_device.draw(logits_there, params, out, plan.has_wide_rows)
        on_device.keep(
            out, params, torch.tensor(pool_rows, dtype=torch.int32, device=device), last_ids
        )
        ids = out.token_ids.tolist()
        raw_logprobs = compute_logprobs(logits)
        expected = on_host.sample(logits, host_slots)
        assert not out.is_faulty.any() and not expected.faulty_rows
        assert ids == expected.token_ids
        assert last_ids[pool_rows].tolist() == ids
        if unheard is not None:
            on_device.note(*unheard)
        unheard = (plan, ids, frozenset[int]())
        assert plan.n_top is not None and expected.logprobs is not None
        tops = ops.top_logprobs(logits_there, out.token_ids, 5)
        entries = token_logprobs(plan.n_top, ids, *(part.tolist() for part in tops))
        for row in range(n):
            ours, theirs = entries[row], expected.logprobs[row]
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert ours.logprob == pytest.approx(float(raw_logprobs[row, ids[row]]), abs=1e-4)
                assert [i for i, _ in ours.top] == [i for i, _ in theirs.top]


@pytest.mark.gpu
def test_a_faulty_row_is_told_and_counts_nothing() -> None:
    device = torch.device("cuda")
    sampler = DeviceSampler(VOCAB_SIZE, device, 4, 64)
    slots = [sampler.add(SamplingParams(temperature=0, presence_penalty=2.0)) for _ in range(2)]
    last_ids = torch.zeros(4, dtype=torch.int32, device=device)
    rows = torch.tensor([2, 0], dtype=torch.int32, device=device)
    logits = torch.zeros(2, VOCAB_SIZE, device=device)
    logits[:, 5] = 1.0
    found = []
    for value in (0.0, float("nan"), 0.0):
        logits[1, 7] = value
        words = np.zeros(2 * WORDS_PER_ROW, np.int32)
        sampler.plan(slots, [2, 0], words)
        out = RowDraw.of(torch.empty(4, dtype=torch.int32, device=device), 2)
        params = RowParams.of(torch.from_numpy(words).to(device))
        sampler.draw(logits, params, out, False)
        sampler.keep(out, params, rows, last_ids)
        found.append([*out.token_ids.tolist(), *out.is_faulty.tolist()])
    # 5 is penalised from the second draw on; the fault of the other row leaves 0 uncounted.
    assert found == [[5, 5, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
