"""Choosing device and dtype from "auto"."""

from __future__ import annotations

from pathlib import Path

import torch

from astrai.requirements import no_gpu_reason

__all__ = ["multiplies_bf16", "resolve_device", "resolve_dtype"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_BF16_FLAGS = {"avx512_bf16", "amx_bf16"}  # as /proc/cpuinfo spells them


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is the first CUDA device where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} is not known; use auto, cpu or cuda.") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device cuda was asked for, but {no_gpu_reason()}.")
    return resolved


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 on a GPU and on a CPU that multiplies it, else float32."""
    if isinstance(dtype, torch.dtype):
        if dtype not in _DTYPES.values():
            raise ValueError(f"dtype {dtype} cannot be served; use float32, bfloat16 or float16.")
        return dtype
    if dtype == "auto":
        fast = device.type == "cuda" or multiplies_bf16()
        return torch.bfloat16 if fast else torch.float32
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is not known; use auto or one of {', '.join(_DTYPES)}.")
    return _DTYPES[dtype]


def multiplies_bf16() -> bool:
    """Has this machine's CPU bfloat16 products (AVX512-BF16 or AMX)?"""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            return not _BF16_FLAGS.isdisjoint(line.split())
    return False
