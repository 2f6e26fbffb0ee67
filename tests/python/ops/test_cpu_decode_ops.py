"""The CPU operations between matrix products: paged decode attention, norm, activation, rotary."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from astrai import _C
from reference import assert_close, reference_attention, reference_rotary, rotary_table

DTYPES = (torch.float32, torch.bfloat16)
GATED = {"silu": _C.cpu_silu_mul, "gelu": _C.cpu_gelu_mul}


@pytest.fixture(autouse=True)
def _two_threads():
    before = _C.cpu_threads()
    _C.cpu_threads(2)
    yield
    _C.cpu_threads(before)


@pytest.fixture(params=_C.cpu_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


class Pool:
    """Requests of the given lengths over shuffled slots; a slot that none of them owns is NaN."""

    def __init__(self, kv_lens: list[int], n_kv_heads: int, head_dim: int, dtype: torch.dtype):
        n_slots = sum(kv_lens) + 7
        slots = torch.randperm(n_slots).tolist()
        self.kv_lens = kv_lens
        self.k_cache = torch.full((n_slots, n_kv_heads, head_dim), torch.nan, dtype=dtype)
        self.v_cache = self.k_cache.clone()
        # Table rows in reverse order of the batch, entries past a request's end far out of range.
        self.table = torch.full(
            (len(kv_lens) + 2, max([*kv_lens, 1]) + 3), 2**30, dtype=torch.int32
        )
        self.rows = torch.arange(len(kv_lens), 0, -1, dtype=torch.int32)
        self.kv_indptr = torch.tensor([0, *kv_lens]).cumsum(0).to(torch.int32)
        self.keys, self.values = [], []
        for row, kv_len in zip(self.rows.tolist(), kv_lens, strict=True):
            own = [slots.pop() for _ in range(kv_len)]
            self.table[row, :kv_len] = torch.tensor(own, dtype=torch.int32)
            self.keys.append(torch.randn(kv_len, n_kv_heads, head_dim).to(dtype))
            self.values.append(torch.randn(kv_len, n_kv_heads, head_dim).to(dtype))
            self.k_cache[own], self.v_cache[own] = self.keys[-1], self.values[-1]

    def decode(
        self,
        q: torch.Tensor,
        isa: str = "",
        rows: slice = slice(None),
        soft_cap: float = 0.0,
        **new: torch.Tensor,
    ) -> torch.Tensor:
        lens = torch.tensor([0, *self.kv_lens[rows]])
        out = torch.full(q.shape, torch.nan, dtype=q.dtype)
        _C.cpu_paged_decode(
            q,
            self.k_cache,
            self.v_cache,
            self.table,
            self.rows[rows],
            lens.cumsum(0).to(torch.int32),
            out,
            **new,
            sm_scale=q.shape[-1] ** -0.5,
            soft_cap=soft_cap,
            isa=isa,
        )
        return out

    def expected(self, q: torch.Tensor) -> torch.Tensor:
        each = zip(q, self.keys, self.values, strict=True)
        return torch.cat([reference_attention(row[None], k, v) for row, k, v in each])


class TestPagedDecode:
    @pytest.mark.parametrize("group", [1, 3])
    @pytest.mark.parametrize("head_dim", [16, 64, 80, 256])
    def test_agrees_with_float64_over_ragged_lengths(self, head_dim, group, dtype, isa):
        pool = Pool([1, 0, 127, 128, 129, 259], 2, head_dim, dtype)
        q = torch.randn(6, 2 * group, head_dim).to(dtype)
        assert_close(pool.decode(q, isa), pool.expected(q), dtype)

    def test_a_request_without_keys_gives_zeros(self, dtype, isa):
        pool = Pool([0, 4], 1, 32, dtype)
        out = pool.decode(torch.randn(2, 2, 32).to(dtype), isa)
        assert torch.equal(out[0], torch.zeros(2, 32, dtype=dtype))

    def test_writes_the_new_rows_first_from_slices_of_one_qkv_tensor(self, dtype, isa):
        pool = Pool([1, 9, 130], 2, 64, dtype)
        qkv = torch.randn(3, 6 + 2 + 2, 64).to(dtype)
        q, new_k, new_v = qkv.split([6, 2, 2], dim=1)
        for i, kv_len in enumerate(pool.kv_lens):
            slot = pool.table[pool.rows[i], kv_len - 1]
            pool.k_cache[slot] = torch.nan
            pool.v_cache[slot] = torch.nan
            pool.keys[i][-1], pool.values[i][-1] = new_k[i], new_v[i]
        out = pool.decode(q, isa, new_k=new_k, new_v=new_v)
        assert_close(out, pool.expected(q), dtype)
        last = [pool.table[pool.rows[i], n - 1].item() for i, n in enumerate(pool.kv_lens)]
        assert torch.equal(pool.k_cache[last], new_k)
        assert torch.equal(pool.v_cache[last], new_v)

    def test_a_row_is_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads(self, dtype, isa):
        pool = Pool([700, 3, 257, 128, 64], 3, 64, dtype)
        q = torch.randn(5, 9, 64).to(dtype)
        together = pool.decode(q, isa)
        alone = [pool.decode(q[i : i + 1], isa, slice(i, i + 1)) for i in range(5)]
        assert torch.equal(together, torch.cat(alone))
        _C.cpu_threads(1)
        assert torch.equal(together, pool.decode(q, isa))

    @pytest.mark.parametrize("cap", [0.5, 50.0])
    def test_a_soft_cap_bends_every_score(self, cap, dtype, isa):
        pool = Pool([1, 0, 127, 130], 2, 32, dtype)
        q = (30 * torch.randn(4, 6, 32)).to(dtype)
        out = pool.decode(q, isa, soft_cap=cap)
        for row, k, v, got in zip(q.double(), pool.keys, pool.values, out, strict=True):
            k, v = (part.double().repeat_interleave(3, 1) for part in (k, v))
            scores = torch.einsum("hd,thd->ht", row, k) * 32**-0.5
            weights = torch.softmax(cap * torch.tanh(scores / cap), dim=-1)
            assert_close(got, torch.einsum("ht,thd->hd", weights, v), dtype)

    def test_scores_far_apart_do_not_overflow(self, dtype, isa):
        pool = Pool([200], 1, 64, dtype)
        q = (300 * torch.randn(1, 1, 64)).to(dtype)
        assert_close(pool.decode(q, isa), pool.expected(q), dtype)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {"k_cache": torch.zeros(8, 3, 16), "v_cache": torch.zeros(8, 3, 16)},
                "q has 4 heads; expected a multiple of k_cache's 3",
            ),
            ({"q": torch.zeros(2, 4, 24)}, r"k_cache has shape \[8, 2, 16\]"),
            ({"out": torch.zeros(2, 4, 16).bfloat16()}, "out is bfloat16; accepted: float32"),
            ({"kv_indptr": torch.tensor([0, 3], dtype=torch.int32)}, r"kv_indptr has shape \[2\]"),
            ({"kv_indptr": torch.tensor([0, 3, 9], dtype=torch.int32)}, "request 1 a length of 6"),
            ({"kv_indptr": torch.tensor([0, 3, 2], dtype=torch.int32)}, "request 1 a length of -1"),
            ({"kv_indptr": torch.tensor([0, 3, 5])}, "kv_indptr is int64; accepted: int32"),
            ({"req_pool_indices": torch.tensor([0, 4], dtype=torch.int32)}, r"indices\[1\] is 4"),
            ({"req_pool_indices": torch.tensor([-1, 0], dtype=torch.int32)}, r"indices\[0\] is -1"),
            ({"new_k": torch.zeros(2, 2, 16)}, "new_k and new_v are given together"),
            ({"soft_cap": -1.0}, "soft_cap is -1.0+; expected a number above 0"),
            ({"q": torch.zeros(2, 16, 4).mT}, "q of shape .* must be contiguous"),
        ],
    )
    def test_a_bad_argument_is_named(self, changed, message):
        arguments = {
            "q": torch.zeros(2, 4, 16),
            "k_cache": torch.zeros(8, 2, 16),
            "v_cache": torch.zeros(8, 2, 16),
            "req_to_token": torch.zeros(4, 5, dtype=torch.int32),
            "req_pool_indices": torch.zeros(2, dtype=torch.int32),
            "kv_indptr": torch.tensor([0, 3, 5], dtype=torch.int32),
            "out": torch.zeros(2, 4, 16),
        } | changed
        with pytest.raises(ValueError, match=f"cpu_paged_decode: .*{message}"):
            _C.cpu_paged_decode(**{"sm_scale": 0.25} | arguments)

    def test_a_head_dim_that_is_no_multiple_of_16_is_refused(self):
        zeros = torch.zeros(1, 1, 24)
        index = torch.zeros(1, 1, dtype=torch.int32)
        indptr = torch.tensor([0, 1], dtype=torch.int32)
        with pytest.raises(ValueError, match="head_dim is 24; expected a multiple of 16"):
            _C.cpu_paged_decode(zeros, zeros, zeros, index, index[0], indptr, zeros, sm_scale=1.0)


class TestRmsNorm:
    @pytest.mark.parametrize("shape", [(1, 1), (1, 576), (5, 37), (300, 130), (0, 8)])
    def test_agrees_with_float64(self, shape, dtype, isa):
        x, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
        out = torch.full_like(x, torch.nan)
        _C.cpu_rms_norm(x, weight, out, 1e-5, isa=isa)
        mean = x.double().square().mean(-1, keepdim=True)
        assert_close(out, x.double() / (mean + 1e-5).sqrt() * weight.double(), dtype)

    def test_residual_becomes_the_rounded_sum_and_is_what_is_normalised(self, dtype, isa):
        x, residual, weight = (torch.randn(shape).to(dtype) for shape in ((3, 45), (3, 45), (45,)))
        expected_sum = x + residual
        expected, out = torch.empty_like(x), torch.full_like(x, torch.nan)
        _C.cpu_rms_norm(expected_sum, weight, expected, 1e-6, isa=isa)
        _C.cpu_rms_norm(x, weight, out, 1e-6, residual, isa=isa)
        assert torch.equal(residual, expected_sum)
        assert torch.equal(out, expected)

    def test_out_may_be_x(self, dtype, isa):
        x, weight = torch.randn(4, 50).to(dtype), torch.randn(50).to(dtype)
        expected = torch.empty_like(x)
        _C.cpu_rms_norm(x, weight, expected, 1e-5, isa=isa)
        _C.cpu_rms_norm(x, weight, x, 1e-5, isa=isa)
        assert torch.equal(x, expected)

    def test_a_bad_argument_is_named(self):
        x = torch.zeros(2, 8)
        with pytest.raises(
            ValueError, match=r"cpu_rms_norm: weight has shape \[7\]; expected \[N=8\]"
        ):
            _C.cpu_rms_norm(x, torch.zeros(7), x, 1e-5)
        with pytest.raises(ValueError, match="cpu_rms_norm: weight is bfloat16; accepted: float32"):
            _C.cpu_rms_norm(x, torch.zeros(8).bfloat16(), x, 1e-5)
        with pytest.raises(ValueError, match=r"cpu_rms_norm: residual has shape \[2, 9\]"):
            _C.cpu_rms_norm(x, torch.zeros(8), x, 1e-5, torch.zeros(2, 9))


@pytest.mark.parametrize("act", ["silu", "gelu"])
class TestGatedActs:
    @pytest.mark.parametrize("shape", [(1, 1), (1, 1536), (7, 29), (200, 200), (0, 4)])
    def test_agrees_with_float64(self, shape, act, dtype, isa):
        gate_up = (3 * torch.randn(shape[0], 2 * shape[1])).to(dtype)
        out = torch.full(shape, torch.nan, dtype=dtype)
        GATED[act](gate_up, out, isa=isa)
        gate, up = gate_up.double().chunk(2, dim=-1)
        expected = F.silu(gate) if act == "silu" else F.gelu(gate, approximate="tanh")
        assert_close(out, expected * up, dtype)

    def test_large_gates_saturate_and_nan_stays(self, act, dtype, isa):
        gates = torch.tensor([-1e4, -100.0, -80.0, 0.0, 80.0, 1e4, torch.nan])
        gate_up = torch.cat((gates, torch.ones(7)))[None].to(dtype)
        out = torch.empty(1, 7, dtype=dtype)
        GATED[act](gate_up, out, isa=isa)
        assert_close(out[0, :6], torch.tensor([0.0, 0.0, 0.0, 0.0, 80.0, 1e4]).to(dtype), dtype)
        assert out[0, 6].isnan()

    def test_a_bad_argument_is_named(self, act):
        with pytest.raises(ValueError, match=rf"cpu_{act}_mul: gate_up has shape \[2, 8\]"):
            GATED[act](torch.zeros(2, 8), torch.zeros(2, 8))


class TestRotary:
    @pytest.mark.parametrize("head_dim", [2, 64, 96])
    def test_agrees_with_float64_over_a_slice_of_qkv(self, head_dim, dtype):
        qkv = torch.randn(9, 7, head_dim).to(dtype)
        freqs = rotary_table(9, head_dim)
        out = torch.full((9, 5, head_dim), torch.nan, dtype=dtype)
        _C.cpu_rotary_emb(qkv[:, :5], freqs, out)
        assert_close(out, reference_rotary(qkv[:, :5], freqs), dtype)

    def test_out_may_be_x(self, dtype):
        x, freqs = torch.randn(4, 3, 32).to(dtype), rotary_table(4, 32)
        expected = torch.empty_like(x)
        _C.cpu_rotary_emb(x, freqs, expected)
        _C.cpu_rotary_emb(x, freqs, x)
        assert torch.equal(x, expected)

    def test_a_bad_argument_is_named(self):
        x = torch.zeros(4, 3, 32)
        with pytest.raises(ValueError, match=r"cpu_rotary_emb: freqs has shape \[5, 16, 2\]"):
            _C.cpu_rotary_emb(x, torch.zeros(5, 16, 2), x)
        with pytest.raises(ValueError, match="head_dim is 3; expected even"):
            _C.cpu_rotary_emb(torch.zeros(1, 1, 3), torch.zeros(1, 1, 2), torch.zeros(1, 1, 3))
