"""The kernels of a decoder layer on a GPU: one launch for each step between two matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from astrai import _C
from astrai.extension import layer_kv, ops, reads_written_kv
from astrai.models.experts import Gate, fits_grouped_products
from astrai.models.layers import HeadNorms, Layers, Placed, PlaceHeads
from astrai.models.narrow_products import narrow_gate

if TYPE_CHECKING:
    from astrai.kvcache import KVCache
    from astrai.models.linear import Linear
    from astrai.models.rotary import RotaryEmbedding
    from astrai.models.workspace import Workspace

__all__ = ["CudaLayers"]

_KERNELS = (
    "embedding",
    "rms_norm",
    "add_rms_norm",
    "silu_mul",
    "gelu_mul",
    "rotary_store_kv",
    "skinny_linear",
    "moe_route",
    "moe_sort",
    "moe_gate_up",
    "moe_down",
    "moe_combine",
)
# Every block of a product norms all of x by itself: beyond so many values in x that takes longer
# than a launch for the norm (benchmarks/results/skinny_linear.md).
_MAX_JOINED_NORM = 2048
_MAX_HEAD_DIM = 256  # of rotary_store_kv, whose vectors are 8 values


class CudaLayers(Layers):
    """For bfloat16 and float16."""

    @staticmethod
    def unavailable_reason(dtype: torch.dtype) -> str | None:
        """Why some of the kernels cannot run here in this dtype, or None."""
        reasons = (ops.unavailable_reason(kernel, dtype) for kernel in _KERNELS)
        return next((reason for reason in reasons if reason is not None), None)

    def embedding(
        self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return ops.embedding(ids, table, out)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return ops.rms_norm(x, weight, eps)

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return ops.add_rms_norm(x, residual, weight, eps, out)

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return ops.silu_mul(gate_up, out)

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return ops.gelu_mul(gate_up, out)

    def max_joined_rows(self, row_len: int) -> int:
        return _C.skinny_linear_max_rows(row_len) if row_len % 8 == 0 else 0

    def gate_linear(
        self, x: torch.Tensor, gate_up: Linear, gate: Gate, space: Workspace
    ) -> torch.Tensor:
        if gate == self.silu_mul and not gate_up.has_own_product:
            joined = narrow_gate(x, gate_up.weight, gate_up.bias, space.gated)
            if joined is not None:
                return joined
        return super().gate_linear(x, gate_up, gate, space)

    def norm_linear(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        linear: Linear,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._norm_product(x, norm, linear, eps, "store", out)

    def norm_silu_linear(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        gate_up: Linear,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._norm_product(x, norm, gate_up, eps, "silu_mul", out)

    @staticmethod
    def _norm_product(
        x: torch.Tensor,
        norm: torch.Tensor,
        linear: Linear,
        eps: float,
        output: Literal["store", "silu_mul"],
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        weight, bias = linear.weight, linear.bias
        if x.numel() <= _MAX_JOINED_NORM:
            return ops.skinny_linear(
                x, weight, bias, norm_weight=norm, eps=eps, output=output, out=out
            )
        normed = ops.rms_norm(x, norm, eps)
        return ops.skinny_linear(normed, weight, bias, output=output, out=out)

    def add_linear(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> None:
        ops.skinny_linear(x, linear.weight, linear.bias, output="add", out=residual)

    def route(
        self, logits: torch.Tensor, n_active: int, norm_topk_prob: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not fits_grouped_products(logits.shape[1], n_active, 0, 0):
            return super().route(logits, n_active, norm_topk_prob)
        return ops.moe_route(logits, n_active, norm_topk_prob)

    def mix_experts(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        gate: Gate,
        space: Workspace,
    ) -> torch.Tensor:
        """Grouped products, whose grids do not depend on the routing. They have SiLU in them;
        another gate, and sizes that they do not take, go the way of `Layers`."""
        n_experts, hidden, intermediate = down.shape
        fits = fits_grouped_products(n_experts, ids.shape[1], hidden, intermediate)
        if not fits or gate != self.silu_mul:
            return super().mix_experts(x, ids.long(), weights, gate_up, down, gate, space)
        gated, parts = space.pair_gated, space.parts  # rows of all pairs of a row of x
        if gated is not None and parts is not None:
            gated, parts = gated.view(-1, intermediate), parts.view(-1, hidden)
        order, tiles = ops.moe_sort(ids, n_experts)
        gated = ops.moe_gate_up(x, gate_up, order, tiles, gated)
        parts = ops.moe_down(gated, down, order, tiles, parts)
        return ops.moe_combine(parts, weights, space.hidden)

    def place_heads(
        self,
        rotary: RotaryEmbedding,
        position_ids: torch.Tensor,
        kv_cache: KVCache | None,
        n_heads: int,
        eps: float,
    ) -> PlaceHeads:
        """Norms, rotation and the write to the cache are one launch, where there is a cache and the
        attention backend takes what is written there."""
        table = rotary.freqs_cis
        rotary_dim = 2 * table.shape[1]
        if kv_cache is None or rotary_dim % 8 or not reads_written_kv():
            return super().place_heads(rotary, position_ids, kv_cache, n_heads, eps)
        head_dim = kv_cache.k_buffer.shape[-1]
        if head_dim % 8 or head_dim > _MAX_HEAD_DIM:
            return super().place_heads(rotary, position_ids, kv_cache, n_heads, eps)
        cache = kv_cache

        def place(layer: HeadNorms, layer_id: int, qkv: torch.Tensor) -> Placed:
            n_turned = (qkv.shape[1] + n_heads) // 2  # q and k heads
            k_cache, v_cache = layer_kv(cache, layer_id)
            q, k = qkv[:, :n_heads], qkv[:, n_heads:n_turned]
            q_norm, k_norm = layer.q_norm, layer.k_norm
            if q_norm is not None and k_norm is not None and len(q_norm) != head_dim:
                # The kernel norms single heads.
                q, k = self.norm_heads(q, q_norm, eps), self.norm_heads(k, k_norm, eps)
                q_norm = k_norm = None
            ops.rotary_store_kv(
                q,
                k,
                qkv[:, n_turned:],
                table,
                k_cache,
                v_cache,
                cache.out_cache_loc,
                positions=position_ids,
                q_norm=q_norm,
                k_norm=k_norm,
                eps=eps,
                q_out=q,
            )
            return q, None, None

        return place
