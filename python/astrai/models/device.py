"""Choosing device and dtype from "auto"."""

from __future__ import annotations

import torch

from astrai.requirements import no_gpu_reason

__all__ = ["resolve_device", "resolve_dtype"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


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
    """ "auto" is bfloat16 on a GPU and float32 on a CPU, whose finer rounding hardly ever lets
    cached pages change a greedy answer."""
    if isinstance(dtype, torch.dtype):
        if dtype not in _DTYPES.values():
            raise ValueError(f"dtype {dtype} cannot be served; use float32, bfloat16 or float16.")
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is not known; use auto or one of {', '.join(_DTYPES)}.")
    return _DTYPES[dtype]
