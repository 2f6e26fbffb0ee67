"""`CausalLM`: the decoder that every family shares, over packed rows and a paged KV cache.

Rows of all requests of a step lie one after another, [total_q, ...], without padding. Query, key
and value weights are one matrix, as are gate and up, and the q and k rows were interleaved at load
(`build.py`), so a layer is four matrix products, its norms, one rotation and one attention call;
where it has experts, `mlp.py` says what stands for the last two products.
What a family lacks is None or 1 in its `ModelConfig` and layers; no family is named here.
For serving only: no autograd. Holds no request state; one forward at a time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from astrai.extension import attention
from astrai.models.config import ModelConfig
from astrai.models.execution import layers_for
from astrai.models.layers import Layers, Placed
from astrai.models.linear import Linear
from astrai.models.mlp import GatedMLP, SparseMLP
from astrai.models.rotary import RotaryEmbedding
from astrai.models.workspace import Workspace

if TYPE_CHECKING:
    from astrai.kvcache import KVCache

__all__ = ["CausalLM", "DecoderLayer", "Walk"]

# From attention to attention; see `CausalLM.walk`.
Walk = Generator[Placed, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer."""

    input_norm: torch.Tensor | None  # [hidden]; None: attention reads the residual itself
    qkv: Linear  # rows: n_heads q, n_kv_heads k, n_kv_heads v, each of head_dim
    q_norm: torch.Tensor | None  # [head_dim] or [n_heads * head_dim], in the order of q's rows
    k_norm: torch.Tensor | None  # [head_dim] or [n_kv_heads * head_dim]
    o: Linear
    attention_norm: torch.Tensor | None  # [hidden], on what attention adds to the residual
    mlp_input_norm: torch.Tensor | None  # [hidden]
    mlp: GatedMLP | SparseMLP
    mlp_norm: torch.Tensor | None  # [hidden], on what the MLP adds to the residual

    def tensors(self) -> list[torch.Tensor]:
        """Every weight of the layer."""
        norms = (
            self.input_norm,
            self.q_norm,
            self.k_norm,
            self.attention_norm,
            self.mlp_input_norm,
            self.mlp_norm,
        )
        found = [norm for norm in norms if norm is not None]
        return [*found, *self.qkv.tensors(), *self.o.tensors(), *self.mlp.tensors()]


class CausalLM:
    """A decoder with its language-model head."""

    def __init__(
        self,
        config: ModelConfig,
        embedding: torch.Tensor,
        layers: list[DecoderLayer],
        final_norm: torch.Tensor,
        lm_head: Linear,
        rotary: RotaryEmbedding,
        local_rotary: RotaryEmbedding | None = None,
        operations: Layers | None = None,
    ) -> None:
        """embedding: [vocab_size, hidden]; final_norm: [hidden]; all on one device and of one
        dtype, the rotary tables apart. local_rotary: of the layers that slide, when not rotary.
        operations: None for those of the device."""
        self.config = config
        self.embedding = embedding
        self.layers = layers
        self.final_norm = final_norm
        self.lm_head = lm_head
        self.rotary = rotary
        self.local_rotary = local_rotary
        self._layers = operations or layers_for(embedding.device, embedding.dtype)
        is_silu = config.activation == "silu"
        self._gate = self._layers.silu_mul if is_silu else self._layers.gelu_mul
        self._sm_scale = config.head_dim**-0.5 if config.sm_scale is None else config.sm_scale
        self._max_joined_rows = self._joined_rows()
        # Rounded like the weights, as the models' authors do.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.dtype).item()

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def max_len(self) -> int:
        """Tokens of the longest text that the rotary table covers, which this model can serve."""
        return self.rotary.max_len

    @property
    def rope_switch_len(self) -> int | None:
        """Tokens of the longest text with the first rotary frequencies. The positions of a longer
        one are given to `forward` plus this number, keys that the cache holds included. None: all
        texts have the same."""
        return self.rotary.switch_len

    def parameters(self) -> list[torch.Tensor]:
        """Every weight once; a tied embedding is not counted again as the head."""
        found = [self.embedding, self.final_norm]
        found += [weight for weight in self.lm_head.tensors() if weight is not self.embedding]
        for layer in self.layers:
            found += layer.tensors()
        return found

    @torch.inference_mode()
    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        kv_cache: KVCache | None,
        fwd: str = "prefill",
        logits_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of the rows asked for, in the serving dtype.

        input_ids, position_ids: [total_q] integers. kv_cache: where keys and values of these rows
        are written and earlier ones read; None makes the rows one sequence from position 0, whose
        rotary frequencies are those of its length.
        fwd: "decode" promises one row per request, "prefill" takes any ragged batch.
        logits_indices: [n] rows that need logits, None for all of them. Returns [n, vocab_size].
        """
        rows = self.walk(input_ids, position_ids, kv_cache)
        try:
            placed = next(rows)
            for layer_id in range(self.config.n_layers):
                placed = rows.send(self.attend(placed, layer_id, kv_cache, fwd))
        except StopIteration as end:
            residual, attended = end.value
        n_rows = residual.shape[0]
        if logits_indices is not None and (fwd != "decode" or len(logits_indices) != n_rows):
            # What follows works row by row, so rows without logits stop here.
            attended = attended.index_select(0, logits_indices)
            residual = residual.index_select(0, logits_indices)
        return self.finish(residual, attended)

    __call__ = forward

    def walk(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        kv_cache: KVCache | None,
        space: Workspace | None = None,
    ) -> Walk:
        """A forward from attention to attention: yields the heads of each layer, is sent what they
        attended, [total_q, n_heads * head_dim], and returns what `finish` takes. Arguments as of
        `forward`. space: where rows are computed, made here when None."""
        config, ops = self.config, self._layers
        eps = config.rms_norm_eps
        switch_len = self.rope_switch_len
        if kv_cache is None and switch_len is not None and input_ids.shape[0] > switch_len:
            position_ids = position_ids + switch_len
        residual = ops.embedding(
            input_ids, self.embedding, None if space is None else space.residual
        )
        if self._embedding_scale != 1.0:
            residual.mul_(self._embedding_scale)
        place = ops.place_heads(self.rotary, position_ids, kv_cache, config.n_heads, eps)
        local = place
        if self.local_rotary is not None:
            local = ops.place_heads(self.local_rotary, position_ids, kv_cache, config.n_heads, eps)
        space = space or Workspace.of(config, residual)
        norm = self.layers[0].input_norm
        joins = self._joins(residual)
        normed = residual
        if norm is not None and not joins:
            normed = ops.rms_norm(residual, norm, eps)
        for layer_id, layer in enumerate(self.layers):
            if joins and layer.input_norm is not None:
                qkv = ops.norm_linear(residual, layer.input_norm, layer.qkv, eps, space.qkv)
            else:
                qkv = layer.qkv(normed, space.qkv)
            qkv = qkv.view(qkv.shape[0], config.n_heads + 2 * config.n_kv_heads, config.head_dim)
            placed = (local if config.is_sliding(layer_id) else place)(layer, layer_id, qkv)
            attended = yield placed
            if layer_id + 1 < len(self.layers):
                next_norm = self.layers[layer_id + 1].input_norm
                normed = self._after_attention(layer, attended, residual, next_norm, space)
        return residual, attended

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Logits [n_rows, vocab_size] of rows of what `walk` returned: the last layer behind its
        attention, the final norm and the head. Changes residual."""
        space = Workspace.of(self.config, residual)
        last = self.layers[-1]
        normed = self._after_attention(last, attended, residual, self.final_norm, space)
        if self._joins(residual):
            normed = self._layers.rms_norm(residual, self.final_norm, self.config.rms_norm_eps)
        return self._scaled(self.lm_head(normed))

    def _after_attention(
        self,
        layer: DecoderLayer,
        attended: torch.Tensor,
        residual: torch.Tensor,
        next_norm: torch.Tensor | None,
        space: Workspace,
    ) -> torch.Tensor:
        """Output projection and MLP of a layer, added to residual. Returns what the next product
        reads: the residual under next_norm, or itself, also where that product joins the norm."""
        if self._joins(residual) and isinstance(layer.mlp, GatedMLP):
            ops, mlp, norm, eps = (
                self._layers, layer.mlp, layer.mlp_input_norm, self.config.rms_norm_eps,
            )  # fmt: skip
            assert norm is not None  # checked by _joined_rows
            ops.add_linear(attended, layer.o, residual)
            gated = ops.norm_silu_linear(residual, norm, mlp.gate_up, eps, space.gated)
            ops.add_linear(gated, mlp.down, residual)
            return residual
        hidden = layer.o(attended, space.hidden)
        normed = self._add(hidden, residual, layer.attention_norm, layer.mlp_input_norm, space)
        hidden = layer.mlp(normed, self._layers, self._gate, space)
        return self._add(hidden, residual, layer.mlp_norm, next_norm, space)

    def _joins(self, residual: torch.Tensor) -> bool:
        """Whether the products of these rows take norm, sum and gate along."""
        return residual.shape[0] <= self._max_joined_rows

    def _joined_rows(self) -> int:
        """Up to how many rows they do; 0 for a model with anything else between its products."""
        config = self.config
        is_plain = config.residual_scale == 1.0 and config.activation == "silu"
        for layer in self.layers:
            norms = (layer.attention_norm, layer.mlp_norm)
            has_own = layer.input_norm is not None and layer.mlp_input_norm is not None
            is_plain &= norms == (None, None) and has_own and isinstance(layer.mlp, GatedMLP)
        if not is_plain:
            return 0
        lens = (config.hidden_size, config.n_heads * config.head_dim, config.intermediate_size)
        return min(self._layers.max_joined_rows(n) for n in lens)

    def _add(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        norm: torch.Tensor | None,
        next_norm: torch.Tensor | None,
        space: Workspace,
    ) -> torch.Tensor:
        """Add hidden, under its norm and scale, to residual in place. Returns what the next product
        reads: the sum under next_norm, or the sum. Both: [n_rows, hidden]."""
        config, ops = self.config, self._layers
        if norm is not None:
            hidden = ops.rms_norm(hidden, norm, config.rms_norm_eps)
        if config.residual_scale != 1.0:
            hidden = hidden.mul_(config.residual_scale)
        if next_norm is None:
            return residual.add_(hidden)
        return ops.add_rms_norm(hidden, residual, next_norm, config.rms_norm_eps, space.normed)

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab_size] under the model's divisor and soft cap, changed in place."""
        config = self.config
        if config.logit_divisor != 1.0:
            logits = logits.div_(config.logit_divisor)
        if config.logit_soft_cap is not None:
            logits = logits.div_(config.logit_soft_cap).tanh_().mul_(config.logit_soft_cap)
        return logits

    def attend(
        self, placed: Placed, layer_id: int, kv_cache: KVCache | None, fwd: str
    ) -> torch.Tensor:
        """Attention of one layer before its output projection: [total_q, n_heads * head_dim]."""
        q, k, v = placed
        n_rows = q.shape[0]
        if kv_cache is None:
            assert k is not None and v is not None  # there is no cache that could hold them
            q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        out = attention(
            q,
            k,
            v,
            kv_cache,
            layer_id,
            is_causal=True,
            fwd=None if kv_cache is None else fwd,
            sm_scale=self._sm_scale,
            window=self.config.window_of(layer_id),
            soft_cap=self.config.attn_soft_cap,
        )
        return out.reshape(n_rows, -1)
