"""attn_paged_decode over the pool's plan: requests that share slots, bitwise as without the plan.

The plan is the pool's own, of requests whose prompts branch off each other; the float64 reference
reads every request's slots for itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from astrai.extension import ops
from astrai.kvcache import KVCache, PagePool

pytestmark = pytest.mark.gpu
PAGE_SIZE, MAX_SEQ_LEN = 16, 4096


class Shared:
    """Requests i with prompts of nested common texts, and this step's q, new_k, new_v."""

    def __init__(
        self, prompts: list[list[int]], n_heads: int, n_kv_heads: int, head_dim: int
    ) -> None:
        n, self.dtype = len(prompts), torch.bfloat16
        n_tokens = PAGE_SIZE * sum(-(-len(prompt) // PAGE_SIZE) for prompt in prompts)
        sizes = (n, MAX_SEQ_LEN, "cuda", self.dtype, PAGE_SIZE, n_tokens)
        self.pool = PagePool(1, n_kv_heads, head_dim, *sizes, n_heads=n_heads)
        self.lens = [len(prompt) for prompt in prompts]
        rows = []
        for prompt in prompts:
            admission = self.pool.admit(prompt)
            rows.append(admission.req_idx)
            self.pool.commit(rows[-1], len(prompt) - 1)
        used = [self.pool.table.host[row, : n - 1] for row, n in zip(rows, self.lens, strict=True)]
        written = torch.cat(used).unique().to("cuda", torch.int64)
        for buffer in (self.pool.k_buffer, self.pool.v_buffer):
            buffer.fill_(torch.nan)  # nobody's slots, and this step's
            buffer[0, written] = torch.randn_like(buffer[0, written])
        self.cache: KVCache = self.pool.bind_tasks(rows, self.lens)
        shapes = ((n, n_heads), (n, n_kv_heads), (n, n_kv_heads))
        self.q, self.new_k, self.new_v = (
            torch.randn(*shape, head_dim, device="cuda").to(self.dtype) for shape in shapes
        )

    def decode(self, has_plan: bool, **options: Any) -> tuple[Tensor, Tensor]:
        """(out, lse), by a workspace that held NaN before."""
        cache = self.cache
        assert cache.decode_o_part is not None and cache.decode_ml_part is not None
        cache.decode_o_part.fill_(torch.nan)
        cache.decode_ml_part.fill_(torch.nan)
        lse = torch.full(self.q.shape[:2], torch.nan, device="cuda")
        plan = {
            "members": cache.decode_members,
            "n_units": cache.decode_n_units,
            "units": cache.decode_units,
            "stack_len": cache.decode_stack_len,
        }
        out = ops.attn_paged_decode(
            self.q,
            cache.k_buffer[0],
            cache.v_buffer[0],
            cache.req_to_token,
            cache.req_pool_indices,
            cache.kv_indptr,
            self.new_k,
            self.new_v,
            o_part_buf=cache.decode_o_part,
            ml_part_buf=cache.decode_ml_part,
            out_buf=torch.full_like(self.q, torch.nan),
            split_indptr=cache.decode_split_indptr,
            lse=lse,
            **(plan if has_plan else {}),
            **options,
        )
        return out, lse

    def expected(self, i: int) -> Tensor:
        """float64 [n_heads, head_dim], after a decode() has written the new rows."""
        slots = self.cache.req_to_token[self.cache.req_pool_indices[i], : self.lens[i]].long()
        keys, values = (x[0, slots].double() for x in (self.pool.k_buffer, self.pool.v_buffer))
        group = self.q.shape[1] // keys.shape[1]
        q = self.q[i].double()
        logits = torch.einsum("hd,nhd->hn", q, keys.repeat_interleave(group, 1))
        weights = (logits * q.shape[1] ** -0.5).softmax(-1)
        return torch.einsum("hn,nhd->hd", weights, values.repeat_interleave(group, 1))


def branching_prompts() -> list[list[int]]:
    """28 requests: a text of 1500 tokens, continued in two ways, and some that share nothing."""
    text, left, right = list(range(1500)), [7] * 900, [8] * 1100
    prompts = [[*text, *left, 9000 + i] for i in range(9)]
    prompts += [[*text, *right, *[9100 + i] * (40 * i + 1)] for i in range(11)]
    prompts += [[*text[: 300 + 130 * i], *[9200 + i] * 30] for i in range(5)]
    prompts += [[9300 + i] * n for i, n in enumerate((1, 700, 2048))]
    return prompts


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 16, 20])
def test_shared_slots_read_once_give_the_bits_of_reading_them_for_each(
    group: int, head_dim: int
) -> None:
    batch = Shared(branching_prompts(), 2 * group, 2, head_dim)

    together, together_lse = batch.decode(has_plan=True)
    apart, apart_lse = batch.decode(has_plan=False)

    assert torch.equal(together, apart)
    assert torch.equal(together_lse, apart_lse)
    for i in (0, 8, 12, 20, 25, 27):
        wanted = batch.expected(i)
        assert (together[i].double() - wanted).norm() <= 4e-3 * wanted.norm()


@pytest.mark.parametrize(
    "options", [{"soft_cap": 5.0}, {"window": 700}, {"sm_scale": 0.3}], ids=str
)
def test_options_keep_the_bits_too(options: dict[str, Any]) -> None:
    batch = Shared(branching_prompts(), 8, 2, 128)

    assert torch.equal(
        batch.decode(has_plan=True, **options)[0], batch.decode(has_plan=False, **options)[0]
    )


def test_a_request_alone_has_the_bits_it_has_among_sharers() -> None:
    batch = Shared(branching_prompts(), 8, 2, 128)
    together, _ = batch.decode(has_plan=True)
    cache = batch.cache

    for i in (0, 12, 24):
        alone = ops.attn_paged_decode(
            batch.q[i : i + 1],
            cache.k_buffer[0],
            cache.v_buffer[0],
            cache.req_to_token,
            cache.req_pool_indices[i : i + 1],
            torch.tensor([0, batch.lens[i]], dtype=torch.int32, device="cuda"),
            batch.new_k[i : i + 1],
            batch.new_v[i : i + 1],
        )
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("n_requests", [2, 15, 16, 64, 300])
def test_any_number_of_sharers_keeps_the_bits(n_requests: int) -> None:
    batch = Shared([[*range(1100), *[5000 + i] * 9] for i in range(n_requests)], 9, 3, 64)

    together, _ = batch.decode(has_plan=True)

    assert torch.equal(together, batch.decode(has_plan=False)[0])
    assert all(torch.equal(batch.decode(has_plan=True)[0], together) for _ in range(20))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_more_units_than_two_for_each_thread_block_are_each_taken_once(head_dim: int) -> None:
    """Thread blocks take the others by a counter, which is 0 again for the next layer."""
    lens = [37 * i % 1300 + 1 for i in range(200)]
    batch = Shared([[5000 + i] * n for i, n in enumerate(lens)], 32, 8, head_dim)
    counted = batch.cache.decode_n_units
    assert counted is not None and int(counted[0]) * 8 > 2000

    apart, apart_lse = batch.decode(has_plan=False)

    for _ in range(20):
        together, lse = batch.decode(has_plan=True)
        assert torch.equal(together, apart)
        assert torch.equal(lse, apart_lse)
        assert int(counted[1]) == 0
    for i in (0, 99, 199):
        wanted = batch.expected(i)
        assert (apart[i].double() - wanted).norm() <= 4e-3 * wanted.norm()


def test_a_captured_plan_replays_with_another_one() -> None:
    first = Shared([[3 * i] * 600 for i in range(6)], 8, 2, 128)
    second = Shared([[*range(1030), 7000 + i] for i in range(6)], 8, 2, 128)
    names = ("kv_indptr", "req_pool_indices", "decode_split_indptr", "decode_members")
    units = torch.zeros(40, 2, dtype=torch.int32, device="cuda")  # of more room than either needs
    stack_len = second.cache.decode_stack_len
    out = torch.empty_like(first.q)

    def call() -> Tensor:
        cache = first.cache
        return ops.attn_paged_decode(
            second.q,
            second.pool.k_buffer[0],
            second.pool.v_buffer[0],
            second.cache.req_to_token,
            cache.req_pool_indices,
            cache.kv_indptr,
            o_part_buf=second.cache.decode_o_part,
            ml_part_buf=second.cache.decode_ml_part,
            out_buf=out,
            split_indptr=cache.decode_split_indptr,
            members=cache.decode_members,
            n_units=cache.decode_n_units,
            units=units,
            stack_len=stack_len,
        )

    wanted, _ = second.decode(has_plan=False)  # and the new rows are in their slots
    names += ("decode_n_units",)

    def use_units(cache: KVCache) -> None:
        assert cache.decode_units is not None
        units[: len(cache.decode_units)] = cache.decode_units

    use_units(
        first.cache
    )  # of requests of two splits that share none, then of three that are shared
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for name in names:
        getattr(first.cache, name).copy_(getattr(second.cache, name))
    use_units(second.cache)
    out.fill_(torch.nan)

    graph.replay()

    assert torch.equal(out, wanted)
