"""The compiled passes of a decoder layer on a CPU: single passes over the rows."""

from __future__ import annotations

import torch

from astrai import _C
from astrai.models.layers import Layers

__all__ = ["CpuLayers"]


class CpuLayers(Layers):
    """For the dtypes in `linear.CPU_DTYPES`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        rows = x.contiguous().view(-1, x.shape[-1])
        out = torch.empty_like(rows)
        _C.cpu_rms_norm(rows, weight, out, eps)
        return out.view(x.shape)

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if out is None:
            out = torch.empty_like(x)
        _C.cpu_rms_norm(x, weight, out, eps, residual)
        return out

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = _half(gate_up) if out is None else out
        _C.cpu_silu_mul(gate_up, out)
        return out

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        out = _half(gate_up) if out is None else out
        _C.cpu_gelu_mul(gate_up, out)
        return out


def _half(gate_up: torch.Tensor) -> torch.Tensor:
    """A place for the gated half of gate_up."""
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
