"""rotary_store_kv: against its parts and float64 on a GPU, and its refusals, which need none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from rotary_reference import rotary_table, rotate
from rounding import assert_one_rounding, nan_like, random_rows
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)
EPS = 1e-6
# (tokens, query heads, KV heads, head_dim): llama8b, qwen, smol, odd ones; the last 4 are many.
SHAPES = (
    (1, 32, 8, 128),
    (3, 16, 8, 128),
    (65, 9, 3, 64),
    (5, 28, 4, 128),
    (7, 4, 1, 256),
    (6, 3, 3, 96),
    (4, 2, 2, 32),
    (2, 2, 1, 24),
    (900, 32, 8, 128),
    (2300, 9, 3, 64),
    (1100, 28, 1, 96),
    (700, 41, 5, 32),
)


@dataclass
class Case:
    """q, k, v as slices of one qkv row, caches of NaN and slots in random order."""

    q: Tensor
    k: Tensor
    v: Tensor
    freqs: Tensor
    k_cache: Tensor
    v_cache: Tensor
    slots: Tensor
    q_norm: Tensor
    k_norm: Tensor

    def call(self, *, has_norm: bool, **options: Tensor) -> Tensor:
        norms = {"q_norm": self.q_norm, "k_norm": self.k_norm, "eps": EPS} if has_norm else {}
        inputs = (self.q, self.k, self.v, self.freqs, self.k_cache, self.v_cache, self.slots)
        return ops.rotary_store_kv(*inputs, **norms, **options)  # type: ignore[arg-type]

    def parts(self, *, has_norm: bool) -> tuple[Tensor, Tensor, Tensor]:
        """q rotated and the two caches, by the three kernels one after another."""
        q, k = self.q, self.k
        if has_norm:
            q, k = ops.rms_norm(q, self.q_norm, EPS), ops.rms_norm(k, self.k_norm, EPS)
        caches = nan_like(self.k_cache), nan_like(self.v_cache)
        ops.store_kv(ops.rotary_emb(k, self.freqs), self.v.contiguous(), *caches, self.slots)
        return ops.rotary_emb(q, self.freqs), *caches


def make_case(
    n_tokens: int, n_heads: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> Case:
    qkv = random_rows((n_tokens, n_heads + 2 * n_kv_heads, head_dim), dtype)
    q, k, v = qkv.split([n_heads, n_kv_heads, n_kv_heads], dim=1)
    n_slots = n_tokens + 9
    cache = torch.full((n_slots, n_kv_heads, head_dim), torch.nan, dtype=dtype, device="cuda")
    return Case(
        q,
        k,
        v,
        rotary_table(torch.arange(n_tokens, device="cuda") * 7, head_dim),
        cache,
        cache.clone(),
        torch.randperm(n_slots, device="cuda")[:n_tokens].int(),
        random_rows((head_dim,), dtype),
        random_rows((head_dim,), dtype),
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN included."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.gpu
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_launch_gives_the_bits_of_its_parts(
    shape: tuple[int, int, int, int], dtype: torch.dtype, has_norm: bool
) -> None:
    if shape[3] == 24 and not ops.is_available("rotary_emb", dtype, 24):
        pytest.skip("rotary_emb has no kernel for head_dim 24")
    case = make_case(*shape, dtype)
    q, k_cache, v_cache = case.parts(has_norm=has_norm)

    out = case.call(has_norm=has_norm)

    assert torch.equal(out, q)
    assert same_bits(case.k_cache, k_cache)
    assert same_bits(case.v_cache, v_cache)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_the_norm_the_result_is_the_float64_rotation_rounded_once(
    dtype: torch.dtype,
) -> None:
    case = make_case(17, 8, 2, 128, dtype)
    expected_q, expected_k = rotate(case.q, case.freqs), rotate(case.k, case.freqs)

    out = case.call(has_norm=False)

    assert_one_rounding(out, expected_q)
    assert_one_rounding(case.k_cache[case.slots.long()], expected_k)
    assert torch.equal(case.v_cache[case.slots.long()], case.v)


@pytest.mark.gpu
@pytest.mark.parametrize("has_norm", [False, True])
def test_t60_q_in_place_and_rows_of_the_whole_table_give_the_same_bits(has_norm: bool) -> None:
    case = make_case(33, 6, 2, 64, torch.bfloat16)
    table = rotary_table(torch.arange(400, device="cuda"), 64)
    positions = torch.randint(0, 400, (33,), device="cuda")
    positions[0] = 399
    case.freqs = table[positions]
    expected = case.call(has_norm=has_norm)
    expected_k = case.k_cache.clone()
    case.freqs = table
    for wide in (positions, positions.int()):
        case.k_cache.fill_(torch.nan)
        out = case.call(has_norm=has_norm, positions=wide)
        assert torch.equal(out, expected)
        assert same_bits(case.k_cache, expected_k)

    returned = case.call(has_norm=has_norm, positions=positions, q_out=case.q)

    assert returned is case.q
    assert torch.equal(case.q, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("rotary_dim", "head_dim"), [(32, 64), (64, 128), (8, 32)])
def test_t63_elements_past_the_rotated_ones_pass_through(
    rotary_dim: int, head_dim: int, has_norm: bool
) -> None:
    case = make_case(9, 4, 2, head_dim, torch.bfloat16)
    case.freqs = rotary_table(torch.arange(9, device="cuda"), rotary_dim)
    q, k_cache, _ = case.parts(has_norm=has_norm)

    out = case.call(has_norm=has_norm)

    assert torch.equal(out, q)
    assert same_bits(case.k_cache, k_cache)
    if not has_norm:
        assert torch.equal(out[..., rotary_dim:], case.q[..., rotary_dim:])
        assert_one_rounding(out[..., :rotary_dim], rotate(case.q[..., :rotary_dim], case.freqs))


@pytest.mark.gpu
def test_t62_negative_slots_are_not_written_but_their_q_is() -> None:
    case = make_case(6, 4, 2, 128, torch.bfloat16)
    case.slots[[1, 4]] = torch.tensor([-1, -(2**31)], dtype=torch.int32, device="cuda")
    q, k_cache, v_cache = case.parts(has_norm=True)

    out = case.call(has_norm=True)

    assert torch.equal(out, q)
    assert same_bits(case.k_cache, k_cache)
    assert same_bits(case.v_cache, v_cache)


@pytest.mark.gpu
def test_t25_slots_beyond_2_to_the_31_elements_are_addressed_in_64_bits() -> None:
    n_slots = 2**31 // 1024 + 8
    case = make_case(2, 8, 8, 128, torch.bfloat16)
    if torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GiB of free device memory")
    case.k_cache = torch.zeros(n_slots, 8, 128, dtype=torch.bfloat16, device="cuda")
    case.v_cache = torch.zeros_like(case.k_cache)
    case.slots = torch.tensor([n_slots - 1, 3], dtype=torch.int32, device="cuda")

    case.call(has_norm=False)

    rotated = ops.rotary_emb(case.k, case.freqs)
    for cache, rows in ((case.k_cache, rotated), (case.v_cache, case.v)):
        assert torch.equal(cache[[n_slots - 1, 3]], rows)
        assert not cache[n_slots - 8 : n_slots - 1].any()
        assert not cache[:3].any()


@pytest.mark.gpu
@pytest.mark.parametrize("has_norm", [False, True])
def test_t61_q_k_and_v_have_their_own_heads_and_strides(has_norm: bool) -> None:
    case = make_case(6, 28, 4, 128, torch.bfloat16)
    expected, k_cache, v_cache = case.parts(has_norm=has_norm)
    # The same rows in tensors of other widths, the caches' heads apart.
    case.q = torch.cat((case.q, case.q), dim=1)[:, :28]
    case.k = torch.cat((case.k, case.k, case.k), dim=1)[:, 4:8]
    case.v = case.v.contiguous()
    case.k_cache = torch.cat((case.k_cache, case.k_cache), dim=2)[..., :128]

    out = case.call(has_norm=has_norm)

    assert torch.equal(out, expected)
    assert same_bits(case.k_cache.contiguous(), k_cache)
    assert same_bits(case.v_cache, v_cache)


@pytest.mark.gpu
def test_a_captured_launch_follows_new_tokens_and_slots() -> None:
    case = make_case(8, 4, 2, 64, torch.bfloat16)
    out = nan_like(case.q)
    case.call(has_norm=True, q_out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.call(has_norm=True, q_out=out)
    case.q.copy_(torch.randn_like(case.q))
    case.slots.copy_(case.slots.flip(0))
    case.k_cache.fill_(torch.nan)
    case.v_cache.fill_(torch.nan)
    q, k_cache, v_cache = case.parts(has_norm=True)

    graph.replay()

    assert torch.equal(out, q)
    assert same_bits(case.k_cache, k_cache)
    assert same_bits(case.v_cache, v_cache)


@pytest.mark.gpu
def test_no_tokens_is_no_work() -> None:
    case = make_case(0, 4, 2, 64, torch.bfloat16)
    assert case.call(has_norm=True).shape == (0, 4, 64)
    assert case.k_cache.isnan().all()


def cpu_case() -> Case:
    q, k = torch.zeros(2, 4, 64, dtype=torch.bfloat16), torch.zeros(2, 2, 64, dtype=torch.bfloat16)
    cache, norm = torch.zeros(8, 2, 64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    slots = torch.zeros(2, dtype=torch.int32)
    return Case(q, k, k, torch.zeros(2, 32, 2), cache, cache.clone(), slots, norm, norm)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("k", torch.zeros(3, 2, 64, dtype=torch.bfloat16), r"k has shape \[3, 2, 64\]"),
        ("freqs", torch.zeros(3, 32, 2), r"freqs has shape \[3, 32, 2\]; expected \[T=2, 32, 2\]"),
        ("freqs", torch.zeros(2, 31, 2), "pairs come in multiples of 4"),
        ("slots", torch.zeros(2, dtype=torch.int64), "out_cache_loc is int64; accepted: int32"),
        ("v_cache", torch.zeros(8, 1, 64, dtype=torch.bfloat16), "v_cache has shape"),
        ("k_norm", torch.zeros(32, dtype=torch.bfloat16), r"k_norm has shape \[32\]"),
        (
            "q",
            torch.zeros(2, 4, 65, dtype=torch.bfloat16)[..., 1:],
            "q has heads that do not start on 16 bytes",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(field: str, value: Tensor, message: str) -> None:
    case = cpu_case()
    setattr(case, field, value)
    with pytest.raises(ValueError, match=message):
        case.call(has_norm=True)


def test_one_norm_without_the_other_is_refused() -> None:
    case = cpu_case()
    with pytest.raises(ValueError, match="q_norm and k_norm are given together"):
        case.call(has_norm=False, q_norm=case.q_norm)


def test_cpu_tensors_are_refused_with_the_reason() -> None:
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"q is on the CPU|no CUDA kernels"):
        cpu_case().call(has_norm=False)
