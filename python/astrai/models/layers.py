"""What a decoder layer computes beside its matrix products, with torch operations.

They run on any device and in any dtype. `CpuLayers` and `CudaLayers` replace single operations by
compiled ones; `execution.py` picks one for a model, so that the decoder has no branches by device.
Stateless; for serving: no autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

from astrai.extension import apply_rotary_emb
from astrai.models.experts import Gate, mix_by_expert, mix_densely, route

if TYPE_CHECKING:
    from astrai.kvcache import KVCache
    from astrai.models.linear import Linear
    from astrai.models.rotary import RotaryEmbedding
    from astrai.models.workspace import Workspace

__all__ = ["HeadNorms", "Layers", "PlaceHeads", "Placed"]

# q [total_q, n_heads, head_dim], and k and v [total_q, n_kv_heads, head_dim] where they are still
# to be written to the cache, else None.
Placed = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]


class HeadNorms(Protocol):
    """The norms of a layer's query and key heads; None without."""

    @property
    def q_norm(self) -> torch.Tensor | None: ...  # [head_dim] or [n_heads * head_dim]
    @property
    def k_norm(self) -> torch.Tensor | None: ...  # [head_dim] or [n_kv_heads * head_dim]


# (layer, layer_id, qkv [total_q, n_heads + 2 n_kv_heads, head_dim]) -> heads ready to attend
PlaceHeads = Callable[[HeadNorms, int, torch.Tensor], Placed]


class Layers:
    """torch operations."""

    def embedding(
        self, ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rows ids [n] of table [vocab_size, hidden], as a tensor of its own. out: where to write
        them."""
        if out is None:
            return F.embedding(ids, table)
        return torch.index_select(table, 0, ids, out=out)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension, mean in float32. x:
        [n_rows, n] or [n_rows, heads, n]; weight: [n]. Zhang and Sennrich, Root Mean Square Layer
        Normalization, 2019."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Adds x to residual in place and returns rms_norm of the sum. Both: [n_rows, n]. out:
        where a compiled pass writes, see `Workspace`."""
        residual.add_(x)
        return F.rms_norm(residual, weight.shape, weight, eps)

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """silu(gate) * up. gate_up: [n_rows, 2 n], gate first. out: where a compiled pass writes,
        see `Workspace`. Returns [n_rows, n]."""
        n = gate_up.shape[1] // 2
        return F.silu(gate_up[:, :n]).mul_(gate_up[:, n:])

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """gelu(gate) * up with the tanh form of GELU; otherwise as `silu_mul`."""
        n = gate_up.shape[1] // 2
        return F.gelu(gate_up[:, :n], approximate="tanh").mul_(gate_up[:, n:])

    def route(
        self, logits: torch.Tensor, n_active: int, norm_topk_prob: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts of each row and their weights, for `mix_experts`; see `experts.route`."""
        return route(logits, n_active, norm_topk_prob)

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
        """The weighted sum of the experts of each row of x [n_rows, hidden]; see
        `experts.mix_by_expert`. ids, weights: what `route` gave. space: where grouped products
        write."""
        mix = mix_by_expert if x.device.type == "cpu" else mix_densely
        return mix(x, ids, weights, gate_up, down, gate)

    def max_joined_rows(self, row_len: int) -> int:
        """Up to so many rows of row_len values, products join what stands before and behind them:
        the three operations below are then one pass each. 0: never."""
        return 0

    def gate_linear(
        self, x: torch.Tensor, gate_up: Linear, gate: Gate, space: Workspace
    ) -> torch.Tensor:
        """gate of gate_up(x), whose rows are gates and then ups, in space.gated where there is
        one. gate: `silu_mul` or `gelu_mul`."""
        return gate(gate_up(x, space.gate_up), space.gated)

    def norm_linear(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        linear: Linear,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """linear(rms_norm(x)). x: [n_rows, n]; norm: [n]."""
        return linear(self.rms_norm(x, norm, eps), out)

    def norm_silu_linear(
        self,
        x: torch.Tensor,
        norm: torch.Tensor,
        gate_up: Linear,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """silu_mul of norm_linear, whose rows are gates and then ups."""
        return self.silu_mul(self.norm_linear(x, norm, gate_up, eps), out)

    def add_linear(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> None:
        """residual += linear(x)."""
        residual.add_(linear(x))

    def norm_heads(self, heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of heads [n_rows, n, head_dim]: of each where weight is [head_dim], of all as
        one vector where it is [n * head_dim]."""
        if weight.shape[0] == heads.shape[-1]:
            return self.rms_norm(heads, weight, eps)
        return self.rms_norm(heads.flatten(1), weight, eps).view(heads.shape)

    def place_heads(
        self,
        rotary: RotaryEmbedding,
        position_ids: torch.Tensor,
        kv_cache: KVCache | None,
        n_heads: int,
        eps: float,
    ) -> PlaceHeads:
        """What each layer of one forward does between its qkv product and its attention: norms of
        the heads where there are some, and the rotation of q and k by position_ids [total_q]."""
        freqs_cis = rotary(position_ids)

        def place(layer: HeadNorms, layer_id: int, qkv: torch.Tensor) -> Placed:
            n_turned = (qkv.shape[1] + n_heads) // 2  # q and k heads
            v = qkv[:, n_turned:]
            if layer.q_norm is None or layer.k_norm is None:
                # q and k turn by the same table: one rotation for both.
                qk = apply_rotary_emb(qkv[:, :n_turned], freqs_cis)
                return qk[:, :n_heads], qk[:, n_heads:], v
            q = self.norm_heads(qkv[:, :n_heads], layer.q_norm, eps)
            k = self.norm_heads(qkv[:, n_heads:n_turned], layer.k_norm, eps)
            return apply_rotary_emb(q, freqs_cis), apply_rotary_emb(k, freqs_cis), v

        return place
