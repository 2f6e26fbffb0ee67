"""`CausalLM`: the decoder that every family shares, over packed rows and a paged KV cache.

Rows of all requests of a step lie one after another, [total_q, ...], without padding. Query, key
and value weights are one matrix, as are gate and up, and the q and k rows were interleaved at load
(`build.py`), so a layer is four matrix products, two norms, one rotation and one attention call.
For serving only: no autograd. Holds no request state; one forward at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from astrai.extension import attention
from astrai.models.config import ModelConfig
from astrai.models.execution import layers_for
from astrai.models.layers import PlaceHeads
from astrai.models.linear import Linear
from astrai.models.rotary import RotaryEmbedding
from astrai.models.workspace import Workspace

if TYPE_CHECKING:
    from astrai.kvcache import KVCache

__all__ = ["CausalLM", "DecoderLayer"]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer."""

    input_norm: torch.Tensor  # [hidden]
    qkv: Linear  # rows: n_heads q, n_kv_heads k, n_kv_heads v, each of head_dim
    q_norm: torch.Tensor | None  # [head_dim], rows interleaved like q's
    k_norm: torch.Tensor | None  # [head_dim]
    o: Linear
    post_attention_norm: torch.Tensor  # [hidden]
    gate_up: Linear  # rows: intermediate_size gate, intermediate_size up
    down: Linear


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
    ) -> None:
        """embedding: [vocab_size, hidden]; final_norm: [hidden]; all on one device and of one
        dtype, the rotary table apart."""
        self.config = config
        self.embedding = embedding
        self.layers = layers
        self.final_norm = final_norm
        self.lm_head = lm_head
        self.rotary = rotary
        self._layers = layers_for(embedding.device, embedding.dtype)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def max_len(self) -> int:
        """Positions that the rotary table covers: the longest sequence this model can serve."""
        return self.rotary.freqs_cis.shape[0]

    def parameters(self) -> list[torch.Tensor]:
        """Every weight once; a tied embedding is not counted again as the head."""
        found = [self.embedding, self.final_norm]
        if self.lm_head.weight is not self.embedding:
            found.append(self.lm_head.weight)
        for layer in self.layers:
            found += [layer.input_norm, layer.post_attention_norm]
            found += [norm for norm in (layer.q_norm, layer.k_norm) if norm is not None]
            for weights in (layer.qkv, layer.o, layer.gate_up, layer.down):
                found.append(weights.weight)
                if weights.bias is not None:
                    found.append(weights.bias)
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
        are written and earlier ones read; None makes the rows one sequence from position 0.
        fwd: "decode" promises one row per request, "prefill" takes any ragged batch.
        logits_indices: [n] rows that need logits, None for all of them. Returns [n, vocab_size].
        """
        config, ops = self.config, self._layers
        eps = config.rms_norm_eps
        residual = ops.embedding(input_ids, self.embedding)
        place = ops.place_heads(self.rotary, position_ids, kv_cache, config.n_heads, eps)
        space = Workspace.of(config, residual)
        last_layer_id = len(self.layers) - 1
        normed = ops.rms_norm(residual, self.layers[0].input_norm, eps)
        for layer_id, layer in enumerate(self.layers):
            qkv = layer.qkv(normed, space.qkv)
            attended = self._attend(layer, layer_id, qkv, place, kv_cache, fwd)
            if layer_id == last_layer_id and logits_indices is not None and fwd != "decode":
                # What follows works row by row, so rows without logits stop here.
                attended = attended.index_select(0, logits_indices)
                residual = residual.index_select(0, logits_indices)
                space = Workspace.of(config, residual)
                logits_indices = None
            hidden = layer.o(attended, space.hidden)
            norm = layer.post_attention_norm
            normed = ops.add_rms_norm(hidden, residual, norm, eps, space.normed)
            gated = ops.silu_mul(layer.gate_up(normed, space.gate_up), space.gated)
            hidden = layer.down(gated, space.hidden)
            is_last = layer_id == last_layer_id
            next_norm = self.final_norm if is_last else self.layers[layer_id + 1].input_norm
            normed = ops.add_rms_norm(hidden, residual, next_norm, eps, space.normed)
        if logits_indices is not None and logits_indices.shape[0] != normed.shape[0]:
            normed = normed.index_select(0, logits_indices)
        return self.lm_head(normed)

    __call__ = forward

    def _attend(
        self,
        layer: DecoderLayer,
        layer_id: int,
        qkv: torch.Tensor,
        place: PlaceHeads,
        kv_cache: KVCache | None,
        fwd: str,
    ) -> torch.Tensor:
        """Attention of one layer before its output projection: [total_q, n_heads * head_dim]."""
        config = self.config
        n_rows, sm_scale = qkv.shape[0], config.head_dim**-0.5
        qkv = qkv.view(n_rows, config.n_heads + 2 * config.n_kv_heads, config.head_dim)
        q, k, v = place(layer, layer_id, qkv)
        if kv_cache is not None:
            out = attention(q, k, v, kv_cache, layer_id, fwd=fwd, is_causal=True, sm_scale=sm_scale)
        else:
            assert k is not None and v is not None  # there is no cache that could hold them
            q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
            out = attention(q, k, v, is_causal=True, sm_scale=sm_scale)
        return out.reshape(n_rows, config.n_heads * config.head_dim)
