"""A ragged batch over a poisoned pool for attn_paged_prefill, and its float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops

# Relative error in the 2-norm: weights and result are rounded to 8 or 11 bits once each.
MAX_ERROR = {torch.bfloat16: 2.7e-3, torch.float16: 4e-4}
POISON_SLOT = 2**31 - 1  # in table entries past kv_len: reading such a slot faults


@dataclass(frozen=True)
class PrefillCase:
    q: Tensor  # [total_q, n_heads, head_dim]
    k_cache: Tensor  # [n_slots, n_kv_heads, head_dim], NaN in slots that no request owns
    v_cache: Tensor
    table: Tensor  # [n_reqs, max_ctx]
    rows: Tensor  # [batch] row of the table
    q_lens: list[int]
    kv_lens: list[int]
    q_tile_rows: int
    options: dict[str, Any] = field(default_factory=dict)
    is_sorted: bool = False  # tiles in the order of `BatchPlan`, those that see most keys last

    def indptr(self, lens: list[int]) -> Tensor:
        return torch.tensor([0, *lens], device=self.q.device).cumsum(0).to(torch.int32)

    def tiles(self) -> tuple[Tensor, Tensor]:
        pairs = [
            (request, tile)
            for request, q_len in enumerate(self.q_lens)
            for tile in range(-(-q_len // self.q_tile_rows))
        ]
        if self.is_sorted:
            pairs.sort(key=lambda pair: self.n_keys(*pair))
        both = torch.tensor(pairs, dtype=torch.int32, device=self.q.device).view(-1, 2).T
        return both[0].contiguous(), both[1].contiguous()

    def n_keys(self, request: int, tile: int) -> int:
        """Keys that a row of the tile may see."""
        q_len = self.q_lens[request]
        return self.kv_lens[request] - q_len + min((tile + 1) * self.q_tile_rows, q_len)

    def run(self, **more: Any) -> Tensor:
        """The kernel's result, in an output that is NaN before."""
        out = more.pop("out", None)
        if out is None:
            out = torch.full_like(self.q, float("nan"))
        return ops.attn_paged_prefill(
            self.q,
            self.k_cache,
            self.v_cache,
            self.table,
            self.rows,
            self.indptr(self.kv_lens),
            self.indptr(self.q_lens),
            *self.tiles(),
            out=out,
            q_tile_rows=self.q_tile_rows,
            **{"is_causal": True, **self.options, **more},
        )

    def only(self, request: int, first_row: int = 0, n_rows: int | None = None) -> PrefillCase:
        """One request alone, or a chunk of its rows with the keys up to the chunk's end."""
        q_len, begin = self.q_lens[request], sum(self.q_lens[:request])
        n_rows = q_len - first_row if n_rows is None else n_rows
        return replace(
            self,
            q=self.q[begin + first_row : begin + first_row + n_rows],
            rows=self.rows[request : request + 1],
            q_lens=[n_rows],
            kv_lens=[self.kv_lens[request] - q_len + first_row + n_rows],
        )


def make_case(
    q_lens: list[int],
    kv_lens: list[int],
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    seed: int = 0,
    **options: Any,
) -> PrefillCase:
    """Random inputs; the requests' slots are a random permutation of part of the pool."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator).to(dtype)

    n_slots, batch = sum(kv_lens) + 7, len(kv_lens)
    slots = torch.randperm(n_slots, device=device, generator=generator)[: sum(kv_lens)]
    k_cache = torch.full((n_slots, n_kv_heads, head_dim), float("nan"), dtype=dtype, device=device)
    v_cache = k_cache.clone()
    k_cache[slots] = normal(len(slots), n_kv_heads, head_dim)
    v_cache[slots] = normal(len(slots), n_kv_heads, head_dim)
    table = torch.full(
        (batch + 2, max(kv_lens, default=0) + 3), POISON_SLOT, dtype=torch.int32, device=device
    )
    rows = torch.randperm(batch + 2, device=device, generator=generator)[:batch].to(torch.int32)
    for row, own in zip(rows.tolist(), slots.split(kv_lens), strict=True):
        table[row, : len(own)] = own.to(torch.int32)
    q = normal(sum(q_lens), n_heads, head_dim)
    index = torch.cuda.current_device() if device == "cuda" else 0
    q_tile_rows = _C.prefill_q_tile_rows(n_heads, n_kv_heads, head_dim, dtype, index)
    return PrefillCase(
        q, k_cache, v_cache, table, rows, list(q_lens), list(kv_lens), q_tile_rows, options
    )


def reference(case: PrefillCase) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp in float64."""
    options = {"is_causal": True, "window": None, "soft_cap": None, "sm_scale": None}
    options |= case.options
    n_heads, head_dim = case.q.shape[1:]
    group = n_heads // case.k_cache.shape[1]
    scale = options["sm_scale"] or head_dim**-0.5
    out = torch.zeros(case.q.shape, dtype=torch.float64, device=case.q.device)
    lse = torch.full(case.q.shape[:2], float("-inf"), dtype=torch.float64, device=case.q.device)
    begin = 0
    for request, (q_len, kv_len) in enumerate(zip(case.q_lens, case.kv_lens, strict=True)):
        own = slice(begin, begin + q_len)
        begin += q_len
        if q_len == 0 or kv_len == 0:
            continue
        slots = case.table[case.rows[request].long(), :kv_len].long()
        keys = case.k_cache[slots].double().repeat_interleave(group, dim=1)
        values = case.v_cache[slots].double().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", case.q[own].double(), keys) * scale
        if options["soft_cap"]:
            scores = options["soft_cap"] * torch.tanh(scores / options["soft_cap"])
        position = torch.arange(q_len, device=keys.device)[:, None] + kv_len - q_len
        key = torch.arange(kv_len, device=keys.device)[None]
        visible = torch.ones(q_len, kv_len, dtype=torch.bool, device=keys.device)
        if options["is_causal"]:
            visible = key <= position
        if options["window"]:
            visible &= key > position - options["window"]
        scores = scores.masked_fill(~visible, float("-inf"))
        lse[own] = torch.logsumexp(scores, dim=-1).T
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # NaN where a row sees no key
        out[own] = torch.einsum("hqk,khd->qhd", weights, values)
    return out, lse


def assert_right(case: PrefillCase, out: Tensor) -> None:
    expected, _ = reference(case)
    assert torch.isfinite(out).all()
    error = (out.double() - expected).norm() / expected.norm().clamp_min(1e-30)
    assert error <= MAX_ERROR[out.dtype], f"relative error {error.item():.3g}"
