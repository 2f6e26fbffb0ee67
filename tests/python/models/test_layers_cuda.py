"""`CudaLayers` in a whole model, with the kernels replaced by their reference on the CPU: the right
arguments reach them, and the result is that of the torch operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_models import llama, qwen3

from astrai.extension import (
    ATTN_BACKEND,
    AttentionBackend,
    TorchNativeBackend,
    attn_backend,
    ops,
)
from astrai.extension.backend import apply_rotary_emb
from astrai.kvcache import PagePool
from astrai.models import CausalLM, load_model
from astrai.models.layers import Layers
from astrai.models.layers_cuda import CudaLayers

TORCH = Layers()
IDS = [3, 17, 90, 4, 4, 61, 33, 8, 71, 25, 2, 19, 50]


def rotary_store_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    freqs: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out_cache_loc: torch.Tensor,
    *,
    positions: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    q_out: torch.Tensor,
) -> torch.Tensor:
    if q_norm is not None and k_norm is not None:
        q, k = TORCH.rms_norm(q, q_norm, eps), TORCH.rms_norm(k, k_norm, eps)
    turns, slots = freqs[positions.long()], out_cache_loc.long()
    k_cache[slots] = apply_rotary_emb(k, turns)
    v_cache[slots] = v
    return q_out.copy_(apply_rotary_emb(q, turns))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("embedding", "rms_norm", "silu_mul"):
        monkeypatch.setattr(ops, name, getattr(TORCH, name))
    monkeypatch.setattr(ops, "add_rms_norm", TORCH.add_rms_norm)
    monkeypatch.setattr(ops, "rotary_store_kv", rotary_store_kv)


def steps(model: CausalLM, backend: AttentionBackend) -> list[torch.Tensor]:
    """Logits of a prompt in two chunks, the second beside another request, then of two decodes."""
    config = model.config
    pool = PagePool(
        config.n_layers, config.n_kv_heads, config.head_dim, 2, 64, "cpu", model.dtype,
        page_size=4, n_tokens=64, n_heads=config.n_heads,
    )  # fmt: skip
    first, second = pool.admit(IDS).req_idx, pool.admit(IDS[::-1]).req_idx
    found = []

    def step(rows: list[int], starts: list[int], q_lens: list[int]) -> None:
        batch = pool.plan_step(rows, starts, q_lens)
        fwd = "decode" if batch.is_decode else "prefill"
        logits = model.forward(
            batch.input_ids, batch.position_ids, batch.kv_cache, fwd, batch.logits_indices
        )
        found.append(logits)

    n = len(IDS)
    with backend:
        step([first], [0], [5])
        step([first, second], [5, 0], [n - 5, n])
        for n_known in (n, n + 1):
            for row in (first, second):
                pool.append(row, 7)
                pool.extend(row, n_known + 1)
            step([first, second], [n_known] * 2, [1, 1])
    return found


class Recorder(TorchNativeBackend):
    """Notes whether it was asked to write keys and values."""

    name = "recorder"

    def __init__(self) -> None:
        self.has_kv: set[bool] = set()

    def forward(self, q: Any, k: Any, v: Any, *rest: Any) -> torch.Tensor:
        self.has_kv.add(k is not None)
        return super().forward(q, k, v, *rest)


class Unaware(Recorder):
    """A backend that has never heard of keys and values that are written already."""

    reads_written_kv = False


@pytest.mark.parametrize("make", [llama, qwen3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("backend", [Recorder, Unaware])
def test_a_model_with_the_kernels_gives_the_logits_of_torch(
    make: Callable[[], Any], backend: type[Recorder], stand_ins: None, tmp_path: Path
) -> None:
    make().save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu", dtype="float32", progress=False).model
    expected = steps(model, TorchNativeBackend())
    model._layers = CudaLayers()
    used = backend()

    found = steps(model, used)

    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert used.has_kv == {not backend.reads_written_kv}


def test_the_built_in_backends_take_keys_that_are_written_already() -> None:
    assert all(attn_backend(member).reads_written_kv for member in ATTN_BACKEND)
