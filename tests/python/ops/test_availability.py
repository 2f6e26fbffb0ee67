"""What the direct wrappers say about kernels that are not there."""

from __future__ import annotations

import pytest
import torch

from astrai import _C
from astrai.extension import ops


def test_all_is_sorted_and_complete() -> None:
    assert ops.__all__ == sorted(ops.__all__)
    assert all(hasattr(ops, name) for name in ops.__all__)


def test_every_kernel_name_is_a_wrapper() -> None:
    assert all(callable(getattr(ops, name)) for name in ops.KERNEL_NAMES)


@pytest.mark.parametrize("name", ops.KERNEL_NAMES)
def test_a_kernel_is_unavailable_exactly_when_there_is_a_reason(name: str) -> None:
    reason = ops.unavailable_reason(name, torch.bfloat16, 64)
    assert ops.is_available(name, torch.bfloat16, 64) == (reason is None)
    if not (_C.BUILT_WITH_CUDA and torch.cuda.is_available()):
        assert reason


def test_an_unknown_kernel_is_an_error_not_an_unavailable_one() -> None:
    with pytest.raises(ValueError, match="unknown kernel 'attn_dense'; the names are"):
        ops.is_available("attn_dense")


def test_a_missing_instance_names_those_that_were_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "BUILT_WITH_CUDA", True)
    monkeypatch.setattr(_C, "compiled_instances", lambda: {"rotary_emb": [("bfloat16", 64)]})
    ops.unavailable_reason.cache_clear()
    try:
        assert ops.unavailable_reason("rotary_emb", torch.float16, 64) == (
            "rotary_emb has no kernel for float16 with head_dim 64; this build has bfloat16 64"
        )
    finally:
        ops.unavailable_reason.cache_clear()


@pytest.mark.gpu
def test_compiled_kernels_run_on_this_gpu() -> None:
    assert ops.unavailable_reason("rotary_emb", torch.bfloat16, 64) is None
    assert ops.unavailable_reason("store_kv", torch.float16, 80) is None
