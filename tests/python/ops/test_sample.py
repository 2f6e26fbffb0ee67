"""sample: against the CPU's Sampler and a float64 reference on a GPU, and its refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops
from astrai.sampling import Sampler, SamplingParams
from astrai.sampling.generator import gumbel_noise, row_keys
from edit_lists import edited

VOCABS = (1, 7, 64, 1000, 8193, 49152, 151936, 262144)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Rows:
    """Parameters of each row, on the CPU."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor

    @staticmethod
    def of(
        n: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
    ) -> Rows:
        return Rows(
            torch.full((n,), temperature),
            torch.full((n,), top_k, dtype=torch.int32),
            torch.full((n,), top_p),
            torch.full((n,), min_p),
            torch.randint(-(2**62), 2**62, (n,)),
            torch.randint(0, 5000, (n,)),
        )

    @staticmethod
    def mixed(n: int) -> Rows:
        """Every combination of the filters among the rows."""
        pick = torch.arange(n)
        rows = Rows.of(n)
        return replace(
            rows,
            temperature=torch.tensor([1.0, 0.0, 0.3, 1.7])[pick % 4],
            top_k=torch.tensor([50, 0, 5, 600, -1, 1, 512], dtype=torch.int32)[pick % 7],
            top_p=torch.tensor([0.9, 1.0, 0.0, 0.5, 0.99])[pick % 5],
            min_p=torch.tensor([0.0, 0.05, 0.0])[pick % 3],
        )

    def __getitem__(self, rows: object) -> Rows:
        return Rows(*(getattr(self, name)[rows].contiguous() for name in self.__annotations__))

    def draw(self, logits: Tensor, **options: object) -> tuple[Tensor, Tensor]:
        """By the kernels, with every output and the workspace full of rubbish beforehand."""
        batch, vocab_size = logits.shape
        n_bytes = ops.sample_workspace_bytes(batch, vocab_size)
        outputs = {
            "token_ids": torch.full((batch,), -7, dtype=torch.int64, device="cuda"),
            "is_faulty": torch.full((batch,), 9, dtype=torch.uint8, device="cuda"),
            "workspace": torch.full((n_bytes,), 0xFF, dtype=torch.uint8, device="cuda"),
        }
        parameters = [getattr(self, name).cuda() for name in self.__annotations__]
        return ops.sample(logits, *parameters, **(outputs | options))  # type: ignore[arg-type]

    def expected(self, logits: Tensor, row: int) -> set[int]:
        """The ids that float rounding allows for this row of final logits, by the definition.

        By torch on the logits' device: rows of 262144 tokens are many for a CPU."""
        x, order = torch.sort(logits[row].double(), descending=True, stable=True)
        order = order[x > -torch.inf]
        x = x[: len(order)]
        if self.temperature[row] == 0 or self.top_k[row] == 1:
            return {int(order[0])}
        k = int(self.top_k[row])
        if 1 <= k < logits.shape[1]:
            x, order = x[:k], order[:k]
        # Scores as float32 gives them: the draw compares sums that were rounded to it.
        kept = x.float()
        scores = (kept - kept[0]) / self.temperature[row].clamp_min(1e-6).item()
        weights = scores.double().exp()
        before = (weights.cumsum(0) - weights) / weights.sum()
        top_p, floor = float(self.top_p[row]), math.log(max(float(self.min_p[row]), 1e-300))

        def survivors(shift: float) -> Tensor:
            kept = (before < top_p + shift * top_p) | (top_p >= 1)
            kept[0] = True
            return kept & (scores.double() >= floor - shift)

        # Where the mass meets top_p, float32 sums may differ.
        n = int(survivors(2e-5).nonzero()[-1]) + 1
        key = row_keys(
            np.array([self.seeds[row]], np.int64).view(np.uint64),
            np.array([self.positions[row]], np.int64),
        ).to(logits.device)
        sums = scores[:n] + gumbel_noise(key, order[None, :n])[0]
        shifts = (-2e-5, 0.0, 2e-5)
        best = [torch.where(survivors(shift)[:n], sums, -torch.inf).argmax() for shift in shifts]
        return set(order[torch.stack(best)].tolist())


def random_logits(n: int, vocab_size: int, dtype: torch.dtype, scale: float = 3.0) -> Tensor:
    return (torch.randn(n, vocab_size, device="cuda") * scale).to(dtype)


def assert_expected(rows: Rows, logits: Tensor, token_ids: Tensor) -> None:
    for row, token_id in enumerate(token_ids.tolist()):
        assert token_id in rows.expected(logits, row), f"row {row}"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab_size", VOCABS)
def test_draws_are_those_of_the_definition(vocab_size: int, dtype: torch.dtype) -> None:
    rows = Rows.mixed(48 if vocab_size < 40000 else 24)
    logits = random_logits(len(rows.top_k), vocab_size, dtype)
    before = logits.clone()

    token_ids, is_faulty = rows.draw(logits)

    assert not is_faulty.any()
    assert_expected(rows, logits, token_ids)
    assert torch.equal(logits, before)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_flat_and_peaked_rows_are_drawn_by_the_definition(scale: float) -> None:
    rows = Rows.mixed(60)
    logits = random_logits(60, 32000, torch.float32, scale)
    token_ids, _ = rows.draw(logits)
    assert_expected(rows, logits, token_ids)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=0),
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=40, top_p=0.9, min_p=0.02),
        SamplingParams(top_k=-1, top_p=0.95),
    ],
    ids=str,
)
def test_tokens_are_those_of_the_cpu_sampler(params: SamplingParams) -> None:
    n, vocab_size = 32, 50000
    rows = Rows.of(n, params.temperature, params.top_k, params.top_p, params.min_p)
    rows.positions.zero_()
    logits = random_logits(n, vocab_size, torch.float32)
    sampler = Sampler(vocab_size)
    slots = [sampler.add(replace(params, seed=int(seed))) for seed in rows.seeds]

    for _ in range(3):
        expected = sampler.sample(logits.cpu(), slots).token_ids
        assert rows.draw(logits)[0].tolist() == expected
        rows.positions += 1


@pytest.mark.gpu
def test_the_promise_of_no_wide_rows_gives_the_same_tokens_and_reports_its_breach() -> None:
    rows = Rows.of(8, top_k=50, top_p=0.9)
    logits = random_logits(8, 151936, torch.bfloat16)
    expected, _ = rows.draw(logits)

    token_ids, is_faulty = rows.draw(logits, has_wide_rows=False)
    assert torch.equal(token_ids, expected)
    assert not is_faulty.any()

    rows.top_k[3] = 0
    token_ids, is_faulty = rows.draw(logits, has_wide_rows=False)
    assert is_faulty.tolist() == [row == 3 for row in range(8)]
    assert token_ids[3] == 0


@pytest.mark.gpu
def test_u4_a_row_is_drawn_alone_and_in_any_batch_alike_100_times() -> None:
    rows = Rows.mixed(130)
    logits = random_logits(130, 40000, torch.bfloat16)
    together, _ = rows.draw(logits)
    for _ in range(100):
        assert torch.equal(rows.draw(logits)[0], together)
    order = torch.randperm(130)
    assert torch.equal(rows[order].draw(logits[order.cuda()])[0], together[order.cuda()])
    for row in range(0, 130, 13):
        alone, _ = rows[[row]].draw(logits[[row]])
        assert alone[0] == together[row]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.7, 0.0), (8, 0.8, 0.0), (0, 1.0, 0.1), (700, 0.9, 0.01)],
)
@pytest.mark.parametrize("vocab_size", [12, 1000])
def test_u1_draws_have_the_distribution_of_the_survivors(
    vocab_size: int, top_k: int, top_p: float, min_p: float
) -> None:
    n = 60000
    one = random_logits(1, vocab_size, torch.float32, 1.0 if vocab_size < 100 else 2.0)
    rows = Rows.of(n, 0.8, top_k, top_p, min_p)
    rows.seeds.fill_(1234)
    rows.positions = torch.arange(n)

    token_ids, _ = rows.draw(one.expand(n, vocab_size))

    x = one[0].double().cpu() / 0.8
    order = torch.sort(x, descending=True, stable=True).indices
    if top_k and top_k < vocab_size:
        order = order[:top_k]
    p = torch.softmax(x[order], 0)
    kept = (p.cumsum(0) - p < top_p) & (p >= min_p * p[0])
    expected = torch.zeros(vocab_size, dtype=torch.float64)
    expected[order[kept]] = p[kept] / p[kept].sum() * n
    counts = torch.bincount(token_ids.cpu(), minlength=vocab_size).double()
    assert not counts[expected == 0].any()
    # Chi-square over the tokens that are expected often enough, the rest as one.
    often = expected >= 8
    observed = torch.cat((counts[often], counts[~often].sum()[None]))
    wanted = torch.cat((expected[often], expected[~often].sum()[None]))
    present = wanted > 0
    chi_square = ((observed - wanted)[present].square() / wanted[present]).sum().item()
    freedom = max(int(present.sum()) - 1, 1)
    assert (
        chi_square < freedom + 6 * (2 * freedom) ** 0.5 + 6
    )  # 6 sigma and more: the seed is fixed


@pytest.mark.gpu
def test_u2_of_equal_logits_the_lower_ids_are_the_first() -> None:
    logits = torch.full((200, 3000), -5.0, device="cuda")
    logits[:, 100:1900] = 2.0
    rows = Rows.of(200, top_k=3)
    assert set(rows.draw(logits)[0].tolist()) == {100, 101, 102}
    assert set(Rows.of(200, top_k=700, top_p=2 / 700)[0:200].draw(logits)[0].tolist()) == {100, 101}
    assert Rows.of(200, temperature=0.0).draw(logits)[0].tolist() == [100] * 200
    # All equal: more ties than the candidates hold.
    assert set(Rows.of(200, top_k=2).draw(logits * 0)[0].tolist()) == {0, 1}
    assert Rows.of(200, top_k=1).draw(logits * -0.0)[0].tolist() == [0] * 200
    assert 1300 < Rows.of(200, top_p=0.5).draw(logits * 0)[0].max() < 1500  # the first 1500


@pytest.mark.gpu
def test_u3_rare_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    # 2^20 draws of a token of probability 1e-4 (expected 105) and of one of 1e-6 (expected 1).
    n = 2**16 - 1
    logits = torch.tensor([1.0, 1e-4, 1e-6, 1e-35], device="cuda").log().expand(n, 4)
    rows = Rows.of(n)
    rows.seeds.fill_(7)
    counts = torch.zeros(4)
    for repeat in range(16):
        rows.positions = torch.arange(n) + repeat * n
        counts += torch.bincount(rows.draw(logits)[0].cpu(), minlength=4)
    assert 60 < counts[1] < 160
    assert counts[2] < 9
    assert counts[3] == 0


@pytest.mark.gpu
def test_u5_odd_values_are_ordered_and_faulty_rows_are_reported_alone() -> None:
    logits = random_logits(9, 5000, torch.float32)
    logits[1, 17] = torch.nan
    logits[2, 4999] = torch.inf
    logits[3] = -torch.inf
    logits[4] = -torch.inf
    logits[4, 4321] = -3e38
    logits[5] = 0.0
    logits[5, 11] = -0.0
    logits[6] = torch.finfo(torch.float32).tiny * torch.rand(5000, device="cuda") * 1e-3
    logits[7, 40] = -torch.tensor(torch.nan)
    for rows in (Rows.of(9), Rows.of(9, top_k=50), Rows.of(9, 0.0), Rows.of(9, top_p=0.5)):
        token_ids, is_faulty = rows.draw(logits)
        assert is_faulty.tolist() == [row in (1, 2, 3, 7) for row in range(9)]
        assert token_ids[[1, 2, 3, 7]].tolist() == [0, 0, 0, 0]
        assert token_ids[4] == 4321
        for row in (0, 4, 5, 6, 8):
            assert int(token_ids[row]) in rows.expected(logits, row)


@pytest.mark.gpu
def test_u6_extreme_parameters_keep_their_meaning() -> None:
    logits = random_logits(6, 2000, torch.float32)
    rows = Rows.of(6)
    best = logits.argmax(-1).tolist()
    assert replace(rows, temperature=torch.full((6,), 1e-6)).draw(logits)[0].tolist() == best
    assert replace(rows, top_p=torch.zeros(6)).draw(logits)[0].tolist() == best
    assert replace(rows, min_p=torch.ones(6)).draw(logits)[0].tolist() == best
    many = replace(rows, top_k=torch.full((6,), 10**6, dtype=torch.int32))
    assert torch.equal(many.draw(logits)[0], rows.draw(logits)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_u7_padding_past_the_vocabulary_is_never_drawn(dtype: torch.dtype) -> None:
    memory = torch.full((40, 1013), 1e4, device="cuda").to(dtype)
    logits = memory[:, 3:1000]  # rows off 16 bytes, 997 tokens
    logits.copy_(random_logits(40, 997, dtype))
    rows = Rows.mixed(40)
    token_ids, _ = rows.draw(logits)
    assert_expected(rows, logits, token_ids)
    assert torch.equal(rows.draw(logits.contiguous())[0], token_ids)


@pytest.mark.gpu
def test_u8_a_captured_draw_follows_new_parameters() -> None:
    logits = random_logits(24, 9000, torch.bfloat16)
    rows, other = Rows.mixed(24), Rows.mixed(24)
    parameters = [getattr(rows, name).cuda() for name in rows.__annotations__]
    outputs = {
        "token_ids": torch.empty(24, dtype=torch.int32, device="cuda"),
        "is_faulty": torch.empty(24, dtype=torch.bool, device="cuda"),
        "workspace": torch.empty(ops.sample_workspace_bytes(24, 9000), dtype=torch.uint8).cuda(),
    }
    ops.sample(logits, *parameters, **outputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.sample(logits, *parameters, **outputs)
    other = other[torch.arange(23, -1, -1)]
    for parameter, name in zip(parameters, other.__annotations__, strict=True):
        parameter.copy_(getattr(other, name))
    logits.copy_(random_logits(24, 9000, torch.bfloat16))

    graph.replay()

    assert torch.equal(outputs["token_ids"].long(), other.draw(logits)[0])
    assert_expected(other, logits, outputs["token_ids"])


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.01, 0.5, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_u10_a_row_is_drawn_alike_by_one_thread_block_and_by_clusters(
    dtype: torch.dtype, scale: float
) -> None:
    rows = Rows.of(200, 0.9, top_p=0.9)
    rows.top_p[::2] = 0.4
    rows.top_k[::7] = 900
    logits = random_logits(200, 60000, dtype, scale)
    together, _ = rows.draw(logits)
    assert_expected(rows[:12], logits[:12], together[:12])
    for n in (1, 3, 16, 31, 64, 65):  # clusters of 8, 4 and 2 thread blocks, and single ones
        assert torch.equal(rows[:n].draw(logits[:n])[0], together[:n])


def random_edits(n: int, vocab_size: int, n_edits: int) -> ops.LogitEdits:
    """Rows 0, 3, 6, ... have no list, 1, 7, ... an empty one; others have up to n_edits entries of
    distinct ids. What lies behind the entries is rubbish."""
    n_lists, capacity = n + 5, n_edits + 3
    lists = torch.randperm(n_lists)[:n].int()
    lens = torch.full((n_lists,), min(n_edits, vocab_size - 1), dtype=torch.int32)
    lens[lists[1::6]] = 0
    lists[::3] = torch.tensor([-1, -7], dtype=torch.int32)[torch.arange(len(lists[::3])) % 2]
    ids = torch.stack([torch.randperm(max(vocab_size, capacity))[:capacity] for _ in lens]).int()
    bias = torch.where(torch.rand(ids.shape) < 0.3, torch.randn(ids.shape) * 20, 0.0)
    bias[torch.rand(ids.shape) < 0.05] = -torch.inf
    counts = torch.randint(-1, 4, ids.shape).float()
    for one, n_used in enumerate(lens.tolist()):
        ids[one, :n_used] = torch.randperm(vocab_size)[:n_used].int()
        ids[one, n_used:] = 2**31 - 1
        bias[one, n_used:] = torch.nan
    penalties = torch.stack([1 + torch.rand(n_lists), *torch.randn(2, n_lists)], dim=1)
    tensors = (lists, lens, ids, bias, counts, penalties)
    return ops.LogitEdits(*(tensor.cuda() for tensor in tensors))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("vocab_size", "n_edits"), [(60, 40), (3001, 3000), (151936, 2000)])
def test_bias_and_penalties_change_only_the_listed_logits(
    vocab_size: int, n_edits: int, dtype: torch.dtype
) -> None:
    rows = Rows.mixed(36)
    logits = random_logits(36, vocab_size, dtype)
    edits = random_edits(36, vocab_size, n_edits)

    token_ids, is_faulty = rows.draw(logits, edits=edits)

    assert not is_faulty.any()
    assert_expected(rows, edited(logits, edits), token_ids)


@pytest.mark.gpu
@pytest.mark.parametrize("has_edits", [False, True])
def test_forbidden_tokens_are_never_drawn_nor_counted(has_edits: bool) -> None:
    n, vocab_size = 36, 5003
    rows = Rows.mixed(n)
    logits = random_logits(n, vocab_size, torch.float32)
    edits = random_edits(n, vocab_size, 900) if has_edits else None
    allowed = torch.rand(5, vocab_size) < 0.02
    allowed[:, 7] = True
    bits = torch.nn.functional.pad(allowed, (0, 157 * 32 - vocab_size), value=True).view(5, 157, 32)
    words = (bits.long() << torch.arange(32)).sum(-1)
    bitmask = (words - (words >> 31 << 32)).int().cuda()
    bitmask_rows = torch.randint(-1, 5, (n,), dtype=torch.int32)
    final = logits if edits is None else edited(logits, edits)
    for row in range(n):
        if bitmask_rows[row] >= 0:
            final = final.clone()
            final[row, ~allowed[bitmask_rows[row]].cuda()] = -torch.inf

    token_ids, is_faulty = rows.draw(
        logits, edits=edits, bitmask=bitmask, bitmask_rows=bitmask_rows.cuda()
    )

    assert not is_faulty.any()
    assert_expected(rows, final, token_ids)


@pytest.mark.gpu
def test_u11_rows_that_few_thread_blocks_share_are_drawn_as_by_many() -> None:
    n, vocab_size = 300, 20000  # 3 chunks, which one thread block takes among so many rows
    rows = Rows.mixed(n)
    logits = random_logits(n, vocab_size, torch.float32)
    edits = random_edits(n, vocab_size, 500)
    bitmask = torch.randint(-(2**31), 2**31, (3, vocab_size // 32), dtype=torch.int32).cuda()
    bitmask_rows = torch.randint(-1, 3, (n,), dtype=torch.int32).cuda()
    together, is_faulty = rows.draw(logits, edits=edits, bitmask=bitmask, bitmask_rows=bitmask_rows)
    assert not is_faulty.any()

    for first in (0, 130, 289):
        some = slice(first, first + 11)
        alone, _ = rows[some].draw(
            logits[some],
            edits=replace(edits, rows=edits.rows[some]),
            bitmask=bitmask,
            bitmask_rows=bitmask_rows[some],
        )
        assert torch.equal(alone, together[some])


@pytest.mark.gpu
@pytest.mark.parametrize("n_finite", [1, 100, 600])
def test_fewer_tokens_than_a_large_top_k_are_all_kept(n_finite: int) -> None:
    logits = random_logits(8, 5000, torch.float32)
    logits[:, n_finite:] = -torch.inf
    for rows in (Rows.of(8, top_k=600), Rows.of(8, top_k=600, top_p=0.9), Rows.of(8, top_k=4999)):
        token_ids, is_faulty = rows.draw(logits)
        assert not is_faulty.any()
        assert_expected(rows, logits, token_ids)


@pytest.mark.gpu
def test_a_row_whose_tokens_are_all_forbidden_is_faulty() -> None:
    bitmask = torch.full((2, 4), -1, dtype=torch.int32, device="cuda")
    bitmask[1] = 0
    _, is_faulty = Rows.of(2).draw(random_logits(2, 128, torch.float32), bitmask=bitmask)
    assert is_faulty.tolist() == [False, True]


@pytest.mark.gpu
@pytest.mark.parametrize("top_k", [0, 5])
def test_lists_that_point_outside_make_their_row_faulty_and_no_other(top_k: int) -> None:
    vocab_size, n = 1000, 12
    outside = [vocab_size, -1, 2**31 - 1, -(2**31)]
    lists = torch.tensor([0, 1, 2, 3, 4, -1, -1, 5, 6, 7, 8, 2**30], dtype=torch.int32)
    ids = torch.tensor([[5], *([i] for i in outside), [6], [5], [5]], dtype=torch.int32)
    edits = ops.LogitEdits(
        lists.cuda(),  # of rows 8 and 9 too long or negative, of 10 and 11 none of the 8 there are
        torch.tensor([1, 1, 1, 1, 1, 1, 2, -1], dtype=torch.int32, device="cuda"),
        ids.cuda(),
        torch.zeros(8, 1, device="cuda"),
        torch.zeros(8, 1, device="cuda"),
        torch.ones(8, 3, device="cuda"),
    )
    bitmask = torch.full((2, 32), -1, dtype=torch.int32, device="cuda")
    bitmask_rows = torch.tensor([0, 1, 1, 1, 1, 2, 1, -1, 0, 0, 0, 0], dtype=torch.int32)
    rows, logits = Rows.of(n, top_k=top_k), random_logits(n, vocab_size, torch.float32)

    token_ids, is_faulty = rows.draw(
        logits, edits=edits, bitmask=bitmask, bitmask_rows=bitmask_rows.cuda()
    )

    assert is_faulty.tolist() == [row not in (0, 6, 7) for row in range(n)]
    assert token_ids[is_faulty.bool()].tolist() == [0] * 9
    for row in (0, 6, 7):
        assert int(token_ids[row]) in rows.expected(logits, row)


@pytest.mark.gpu
def test_no_rows_is_no_work() -> None:
    token_ids, _ = Rows.of(0).draw(random_logits(0, 100, torch.float32))
    assert token_ids.shape == (0,)


def cpu_arguments() -> dict[str, Tensor]:
    rows = Rows.of(2, top_k=5)
    arguments = {name: getattr(rows, name) for name in Rows.__annotations__}
    return {"logits": torch.zeros(2, 100), **arguments}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("logits", torch.zeros(2, 100, dtype=torch.float64), "logits is float64; accepted"),
        ("logits", torch.zeros(2, 262145), "up to 65535 rows of 1 to 262144 tokens"),
        ("logits", torch.zeros(100, 2).T, "logits of shape .* must be contiguous"),
        ("temperature", torch.zeros(3), r"temperature has shape \[3\]; expected \[B=2\]"),
        ("top_k", torch.zeros(2), "top_k is float32; accepted: int32"),
        ("seeds", torch.zeros(2, dtype=torch.int32), "seeds is int32; accepted: int64"),
        ("workspace", torch.zeros(8, dtype=torch.uint8), r"workspace has shape \[8\]; expected"),
        ("bitmask", torch.zeros(2, 3, dtype=torch.int32), r"bitmask has shape \[2, 3\]"),
        ("token_ids", torch.zeros(2), "token_ids is float32; accepted: int32, int64"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name: str, value: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.sample(**(cpu_arguments() | {name: value}))  # type: ignore[arg-type]


def test_edits_that_do_not_fit_are_refused() -> None:
    edits = ops.LogitEdits(
        torch.zeros(2, dtype=torch.int32),
        torch.zeros(7, dtype=torch.int32),
        torch.zeros(7, 4, dtype=torch.int32),
        torch.zeros(7, 4),
        torch.zeros(7, 5),
        torch.zeros(7, 3),
    )
    with pytest.raises(ValueError, match=r"edit_counts has shape \[7, 5\]; expected \[L=7, C=4\]"):
        ops.sample(**cpu_arguments(), edits=edits)  # type: ignore[arg-type]


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"logits is on the CPU|no CUDA kernels"):
        ops.sample(**cpu_arguments())
