"""Which kernels this build has and whether a GPU here can run them."""

from __future__ import annotations

from functools import cache

import torch

from astrai import _C, requirements

KERNEL_NAMES = (
    "add_rms_norm",
    "attn_paged_decode",
    "attn_paged_prefill",
    "embedding",
    "gelu_mul",
    "keep_drawn",
    "moe_combine",
    "moe_down",
    "moe_gate_up",
    "moe_route",
    "moe_sort",
    "narrow_linear",
    "rms_norm",
    "rotary_emb",
    "rotary_store_kv",
    "sample",
    "silu_mul",
    "skinny_linear",
    "store_kv",
    "top_logprobs",
)

_OF_HOPPER = ("narrow_linear",)  # all others have a form for every GPU


def is_available(name: str, dtype: torch.dtype | None = None, head_dim: int | None = None) -> bool:
    """True when kernel `name` can run here, for this dtype and head_dim where they are given."""
    return unavailable_reason(name, dtype, head_dim) is None


@cache
def unavailable_reason(
    name: str, dtype: torch.dtype | None = None, head_dim: int | None = None
) -> str | None:
    """Why kernel `name` cannot run here, or None when it can.

    Raises ValueError for a name that is not in KERNEL_NAMES.
    """
    if name not in KERNEL_NAMES:
        raise ValueError(f"unknown kernel '{name}'; the names are {', '.join(KERNEL_NAMES)}")
    if not _C.BUILT_WITH_CUDA:
        return f"this build has no CUDA kernels ({_C.CUDA_REASON})"
    built = _C.compiled_instances().get(name, [])
    if not built:
        return f"this build has no {name} kernel"
    wanted = str(dtype).removeprefix("torch.")
    fitting = [
        pair
        for pair in built
        if (dtype is None or pair[0] == wanted) and (head_dim is None or pair[1] in (0, head_dim))
    ]
    if not fitting:
        pairs = ", ".join(f"{name} {size or 'any head_dim'}" for name, size in built)
        return f"{name} has no kernel for {wanted} with head_dim {head_dim}; this build has {pairs}"
    reason = _device_reason()
    if reason is None and name in _OF_HOPPER and torch.cuda.get_device_capability() != (9, 0):
        return f"{name} needs a GPU of compute capability 9.0"
    return reason


def _device_reason() -> str | None:
    """Why the current GPU cannot run this build's machine code, or None when it can."""
    if not torch.cuda.is_available():
        return requirements.no_gpu_reason()
    return requirements.unfit_gpu_reason(
        torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    )
