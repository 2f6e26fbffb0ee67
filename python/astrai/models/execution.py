"""Who computes the layers of a model: the one choice by device, dtype and build."""

from __future__ import annotations

import torch

from astrai.models.layers import Layers
from astrai.models.layers_cpu import CpuLayers
from astrai.models.layers_cuda import CudaLayers
from astrai.models.linear import CPU_DTYPES

__all__ = ["layers_for"]


def layers_for(device: torch.device, dtype: torch.dtype) -> Layers:
    """Compiled operations where there are some for this device and dtype, else torch's."""
    if device.type == "cpu" and dtype in CPU_DTYPES:
        return CpuLayers()
    if device.type == "cuda" and CudaLayers.unavailable_reason(dtype) is None:
        return CudaLayers()
    return Layers()
