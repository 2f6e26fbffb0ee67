"""Norms, activations, rotary, KV write and embedding on a GPU: error, time, bandwidth, torch.

    python benchmarks/kernels/elementwise.py --out benchmarks/results --commit HASH

Method: graph_timing.py. Bytes count every element read and written once. Each row is checked
against float64 on the buffers that are then timed; rotary works in place and is checked on a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from graph_timing import arguments, machine, n_sets, replay_us, write_results
from torch import Tensor

from astrai.extension import ops

EPS = 1e-5
TOKENS = (1, 64, 256, 8192)
N_TABLE_ROWS = 32768


@dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    intermediate: int
    n_heads: int
    n_kv_heads: int
    head_dim: int


MODELS = (
    Model("llama8b", 4096, 14336, 32, 8, 128),
    Model("qwen0.6b", 1024, 3072, 16, 8, 128),
    Model("smol", 576, 1536, 9, 3, 64),
)


@dataclass
class Case:
    """One operation on buffer sets. run and torch_run take one set; error compares a fresh run."""

    n_bytes: int
    make: Callable[[], list[Tensor]]
    run: Callable[..., object]
    torch_run: Callable[..., object]
    error: Callable[..., float]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm()).item()


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def norm64(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def rotate64(x: Tensor, freqs: Tensor) -> Tensor:
    even, odd = x[..., 0::2].double(), x[..., 1::2].double()
    cosine, sine = freqs[:, None, :, 0].double(), freqs[:, None, :, 1].double()
    turned = [even * cosine - odd * sine, even * sine + odd * cosine]
    return torch.stack(turned, dim=-1).flatten(-2)


def torch_rotate(x: Tensor, freqs: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = pairs * torch.view_as_complex(freqs)[:, None]
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def norm_cases(model: Model, n_tokens: int) -> dict[str, Case]:
    n = model.hidden
    weight = random(n)

    def fresh_add_error(x: Tensor, residual: Tensor, out: Tensor) -> float:
        residual = residual.clone()
        total = (x.float() + residual.float()).bfloat16()
        out.fill_(torch.nan)
        ops.add_rms_norm(x, residual, weight, EPS, out=out)
        return max(
            relative_error(out, norm64(total, weight)), relative_error(residual, total.double())
        )

    def torch_add(x: Tensor, residual: Tensor, out: Tensor) -> None:
        residual.add_(x)
        F.rms_norm(residual, (n,), weight, EPS)

    return {
        "rms_norm": Case(
            4 * n_tokens * n,
            lambda: [random(n_tokens, n), random(n_tokens, n)],
            lambda x, out: ops.rms_norm(x, weight, EPS, out=out),
            lambda x, _: F.rms_norm(x, (n,), weight, EPS),
            lambda x, out: relative_error(
                ops.rms_norm(x, weight, EPS, out=out.fill_(torch.nan)), norm64(x, weight)
            ),
        ),
        "add_rms_norm": Case(
            8 * n_tokens * n,
            lambda: [random(n_tokens, n) * 1e-3, random(n_tokens, n), random(n_tokens, n)],
            lambda x, residual, out: ops.add_rms_norm(x, residual, weight, EPS, out=out),
            torch_add,
            fresh_add_error,
        ),
    }


def act_cases(model: Model, n_tokens: int) -> dict[str, Case]:
    n = model.intermediate

    def case(op: Callable[..., Tensor], act: Callable[[Tensor], Tensor]) -> Case:
        def error(gate_up: Tensor, out: Tensor) -> float:
            op(gate_up, out=out.fill_(torch.nan))
            rows = slice(0, 512)
            expected = act(gate_up[rows, :n].double()) * gate_up[rows, n:].double()
            assert out.isfinite().all()
            return relative_error(out[rows], expected)

        return Case(
            6 * n_tokens * n,
            lambda: [random(n_tokens, 2 * n), random(n_tokens, n)],
            lambda gate_up, out: op(gate_up, out=out),
            lambda gate_up, out: torch.mul(act(gate_up[:, :n]), gate_up[:, n:], out=out),
            error,
        )

    return {
        "silu_mul": case(ops.silu_mul, F.silu),
        "gelu_mul": case(ops.gelu_mul, lambda x: F.gelu(x, approximate="tanh")),
    }


def attention_cases(model: Model, n_tokens: int) -> dict[str, Case]:
    h, h_kv, d = model.n_heads, model.n_kv_heads, model.head_dim
    angles = torch.arange(n_tokens, device="cuda")[:, None] * 10000.0 ** (
        -torch.arange(0, d, 2, device="cuda") / d
    )
    freqs = torch.stack((angles.cos(), angles.sin()), -1).float().contiguous()
    q_norm, k_norm = random(d), random(d)
    n_slots = 2 * n_tokens + 7

    def make() -> list[Tensor]:
        qkv = random(n_tokens, h + 2 * h_kv, d)
        slots = torch.randperm(n_slots, device="cuda")[:n_tokens].int()
        return [
            qkv,
            random(n_tokens, h, d),
            random(n_slots, h_kv, d),
            random(n_slots, h_kv, d),
            slots,
        ]

    def fused(
        has_norm: bool, qkv: Tensor, q_out: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
    ) -> None:
        q, k, v = qkv[:, :h], qkv[:, h : h + h_kv], qkv[:, h + h_kv :]
        norms = {"q_norm": q_norm, "k_norm": k_norm, "eps": EPS} if has_norm else {}
        ops.rotary_store_kv(q, k, v, freqs, k_cache, v_cache, slots, q_out=q_out, **norms)

    def torch_fused(
        has_norm: bool, qkv: Tensor, q_out: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
    ) -> None:
        q, k, v = qkv[:, :h], qkv[:, h : h + h_kv], qkv[:, h + h_kv :]
        if has_norm:
            q, k = F.rms_norm(q, (d,), q_norm, EPS), F.rms_norm(k, (d,), k_norm, EPS)
        q_out.copy_(torch_rotate(q, freqs))
        k_cache.index_copy_(0, slots.long(), torch_rotate(k, freqs))
        v_cache.index_copy_(0, slots.long(), v)

    def fused_error(has_norm: bool, *buffers: Tensor) -> float:
        qkv, q_out, k_cache, v_cache, slots = buffers
        for written in (q_out, k_cache, v_cache):
            written.fill_(torch.nan)
        fused(has_norm, *buffers)
        q, k, v = qkv[:, :h], qkv[:, h : h + h_kv], qkv[:, h + h_kv :]
        expected_q, expected_k = q.double(), k.double()
        if has_norm:
            expected_q, expected_k = norm64(q, q_norm), norm64(k, k_norm)
        assert torch.equal(v_cache[slots.long()], v)
        assert int(k_cache.isnan().any(-1).any(-1).sum()) == n_slots - n_tokens
        return max(
            relative_error(q_out, rotate64(expected_q, freqs)),
            relative_error(k_cache[slots.long()], rotate64(expected_k, freqs)),
        )

    def rotary_error(qkv: Tensor, *_: Tensor) -> float:
        x = qkv[:, : h + h_kv].clone()
        return relative_error(ops.rotary_emb(x, freqs, out=x), rotate64(qkv[:, : h + h_kv], freqs))

    def store_error(
        qkv: Tensor, _: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor
    ) -> float:
        k, v = qkv[:, h : h + h_kv], qkv[:, h + h_kv :]
        ops.store_kv(k, v, k_cache, v_cache, slots)
        assert torch.equal(k_cache[slots.long()], k)
        assert torch.equal(v_cache[slots.long()], v)
        return 0.0

    head_bytes = n_tokens * d * 2
    table_bytes = 4 * n_tokens * d
    return {
        "rotary_emb q, k": Case(
            2 * (h + h_kv) * head_bytes + table_bytes,
            make,
            lambda qkv, *_: ops.rotary_emb(qkv[:, : h + h_kv], freqs, out=qkv[:, : h + h_kv]),
            lambda qkv, *_: qkv[:, : h + h_kv].copy_(torch_rotate(qkv[:, : h + h_kv], freqs)),
            rotary_error,
        ),
        "store_kv": Case(
            4 * h_kv * head_bytes,
            make,
            lambda qkv, _, k_cache, v_cache, slots: ops.store_kv(
                qkv[:, h : h + h_kv], qkv[:, h + h_kv :], k_cache, v_cache, slots
            ),
            lambda qkv, _, k_cache, v_cache, slots: (
                k_cache.index_copy_(0, slots.long(), qkv[:, h : h + h_kv]),
                v_cache.index_copy_(0, slots.long(), qkv[:, h + h_kv :]),
            ),
            store_error,
        ),
        "rotary_store_kv": Case(
            2 * (h + 2 * h_kv) * head_bytes + table_bytes,
            make,
            lambda *buffers: fused(False, *buffers),
            lambda *buffers: torch_fused(False, *buffers),
            lambda *buffers: fused_error(False, *buffers),
        ),
        "norm + rotary_store_kv": Case(
            2 * (h + 2 * h_kv) * head_bytes + table_bytes,
            make,
            lambda *buffers: fused(True, *buffers),
            lambda *buffers: torch_fused(True, *buffers),
            lambda *buffers: fused_error(True, *buffers),
        ),
    }


def embedding_case(model: Model, n_tokens: int) -> dict[str, Case]:
    table = random(N_TABLE_ROWS, model.hidden)

    def error(ids: Tensor, out: Tensor) -> float:
        assert torch.equal(ops.embedding(ids, table, out=out.fill_(torch.nan)), table[ids])
        return 0.0

    return {
        "embedding": Case(
            4 * n_tokens * model.hidden,
            lambda: [
                torch.randint(0, N_TABLE_ROWS, (n_tokens,), device="cuda"),
                random(n_tokens, model.hidden),
            ],
            lambda ids, out: ops.embedding(ids, table, out=out),
            lambda ids, _: F.embedding(ids, table),
            error,
        )
    }


def measure(model: Model, n_tokens: int, ceiling_gb_s: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    cases = {
        **norm_cases(model, n_tokens),
        **act_cases(model, n_tokens),
        **attention_cases(model, n_tokens),
        **embedding_case(model, n_tokens),
    }
    for op, case in cases.items():
        sets = [case.make() for _ in range(n_sets(case.n_bytes))]
        error = case.error(*sets[0])
        assert error < 5e-3, f"{op} {model.name} {n_tokens}: relative error {error}"
        ours = replay_us([partial(case.run, *one) for one in sets])
        by_torch = replay_us([partial(case.torch_run, *one) for one in sets])
        gb_s = case.n_bytes / ours.median / 1000
        rows.append(
            {
                "op": op,
                "model": model.name,
                "tokens": n_tokens,
                "error": f"{error:.1e}",
                "us": round(ours.median, 2),
                "p10": round(ours.p10, 2),
                "p90": round(ours.p90, 2),
                "GB/s": round(gb_s),
                "of read": f"{gb_s / ceiling_gb_s:.0%}",
                "torch us": round(by_torch.median, 2),
                "torch / ours": round(by_torch.median / ours.median, 1),
            }
        )
    return rows


def main() -> None:
    options = arguments(__doc__)
    torch.manual_seed(0)
    head = machine(options.commit)
    rows = []
    for model in MODELS:
        for n_tokens in TOKENS:
            rows += measure(model, n_tokens, int(str(head["read GB/s"])))
            torch.cuda.empty_cache()
    write_results(
        "elementwise",
        "GPU operations between matrix products",
        "bfloat16; microseconds a call by graph replay over rotating buffers. `of read` compares"
        " the bytes read and written with the read bandwidth above.",
        head,
        rows,
        options.out,
    )


if __name__ == "__main__":
    main()
