"""Building a `CausalLM` from a `WeightSource`: fusing, interleaving and placing its weights.

Every tensor is copied once, from the mapped file into its place in the serving dtype; at no time
is there a second copy of more than one tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch

from astrai.models.config import ModelConfig
from astrai.models.decoder import CausalLM, DecoderLayer
from astrai.models.linear import Linear
from astrai.models.rotary import RotaryEmbedding
from astrai.models.weights import WeightSource, check_weights, interleaved_rows, layer_prefix

__all__ = ["build_model"]


def build_model(
    config: ModelConfig,
    source: WeightSource,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_len: int,
    on_bytes: Callable[[int], object] = lambda n_bytes: None,
) -> CausalLM:
    """max_len: positions of the rotary table. on_bytes: told the file bytes of each tensor read.

    Raises ModelLoadError for tensors that do not fit the configuration."""
    check_weights(config, source)
    placer = _Placer(config, source, device, dtype, on_bytes)
    embedding = placer.place(["model.embed_tokens.weight"])
    lm_head = embedding if config.tie_word_embeddings else placer.place(["lm_head.weight"])
    return CausalLM(
        config,
        embedding,
        [placer.layer(layer_id) for layer_id in range(config.n_layers)],
        placer.place(["model.norm.weight"]),
        Linear(lm_head),
        RotaryEmbedding(
            config.head_dim, max_len, config.rope, config.max_position_embeddings, device
        ),
    )


class _Placer:
    """Copies named tensors into fresh ones on the device."""

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        device: torch.device,
        dtype: torch.dtype,
        on_bytes: Callable[[int], object],
    ) -> None:
        self._config = config
        self._source = source
        self._device = device
        self._dtype = dtype
        self._on_bytes = on_bytes
        # Heads whose rows are to be interleaved, by the last part of the tensor's module name.
        self._row_index: dict[str, torch.Tensor] = {}
        if not source.rows_interleaved:
            head_dim = config.head_dim
            for module, n_heads in (
                ("q_proj", config.n_heads),
                ("k_proj", config.n_kv_heads),
                ("q_norm", 1),
                ("k_norm", 1),
            ):
                self._row_index[module] = interleaved_rows(n_heads, head_dim).to(device)

    def layer(self, layer_id: int) -> DecoderLayer:
        prefix, config = layer_prefix(layer_id), self._config
        attn, mlp = prefix + "self_attn.", prefix + "mlp."
        return DecoderLayer(
            input_norm=self.place([prefix + "input_layernorm.weight"]),
            qkv=self._linear(
                [attn + "q_proj", attn + "k_proj", attn + "v_proj"], config.attention_bias
            ),
            q_norm=self.place([attn + "q_norm.weight"]) if config.use_qk_norm else None,
            k_norm=self.place([attn + "k_norm.weight"]) if config.use_qk_norm else None,
            o=self._linear([attn + "o_proj"], config.attention_bias),
            post_attention_norm=self.place([prefix + "post_attention_layernorm.weight"]),
            gate_up=self._linear([mlp + "gate_proj", mlp + "up_proj"], config.mlp_bias),
            down=self._linear([mlp + "down_proj"], config.mlp_bias),
        )

    def place(self, names: list[str]) -> torch.Tensor:
        """The named tensors, stacked along their rows."""
        shapes = [self._source.shape(name) for name in names]
        n_rows = sum(shape[0] for shape in shapes)
        out = torch.empty((n_rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        begin = 0
        for name, shape in zip(names, shapes, strict=True):
            rows = out[begin : begin + shape[0]]
            self._source.copy_into(name, rows, self._row_index.get(name.split(".")[-2]))
            self._on_bytes(self._source.n_bytes(name))
            begin += shape[0]
        return out

    def _linear(self, modules: list[str], has_bias: bool) -> Linear:
        weight = self.place([f"{module}.weight" for module in modules])
        bias = self.place([f"{module}.bias" for module in modules]) if has_bias else None
        return Linear(weight, bias)
