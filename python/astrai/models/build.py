"""Building a `CausalLM` from a `WeightSource`: fusing, interleaving and placing its weights.

Every tensor is copied once, from the mapped file into its place in the serving dtype; at no time
is there a second copy of more than one tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch

from astrai.models.config import ModelConfig
from astrai.models.decoder import CausalLM, DecoderLayer
from astrai.models.expert_weights import expert_parts, expert_shapes
from astrai.models.families import Family
from astrai.models.linear import Linear
from astrai.models.mlp import GatedMLP, SparseMLP
from astrai.models.registry import family_named
from astrai.models.rope import RopeConfig
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
        placer.norm("model.norm"),
        Linear(lm_head),
        _rotary(config, config.rope, max_len, device),
        None if config.local_rope is None else _rotary(config, config.local_rope, max_len, device),
    )


def _rotary(
    config: ModelConfig, rope: RopeConfig, max_len: int, device: torch.device
) -> RotaryEmbedding:
    context = config.max_position_embeddings
    return RotaryEmbedding(config.head_dim, max_len, rope, context, device, config.rope_switch_len)


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
        self._names = source.names()
        self._device = device
        self._dtype = dtype
        self._on_bytes = on_bytes
        self._family = family_named(config.architecture)
        # Where the rows of a module go, by its name within a layer.
        self._row_index: dict[str, torch.Tensor] = {}
        if not source.rows_interleaved:
            found = _row_indices(config, self._family)
            self._row_index = {name: index.to(device) for name, index in found.items()}

    def layer(self, layer_id: int) -> DecoderLayer:
        prefix, config, names = layer_prefix(layer_id), self._config, self._family.layer
        q_norm, k_norm = (names.q_norm, names.k_norm) if config.use_qk_norm else (None, None)

        def norm(name: str | None) -> torch.Tensor | None:
            return None if name is None else self.norm(prefix + name)

        def linear(modules: tuple[str, ...], has_bias: bool) -> Linear:
            return self._linear([prefix + module for module in modules], has_bias)

        return DecoderLayer(
            input_norm=norm(names.input_norm),
            qkv=linear(names.qkv, config.attention_bias),
            q_norm=norm(q_norm),
            k_norm=norm(k_norm),
            o=linear((names.o,), config.o_bias),
            attention_norm=norm(names.attention_norm),
            mlp_input_norm=norm(names.mlp_input_norm),
            mlp=self._mlp(layer_id),
            mlp_norm=norm(names.mlp_norm),
        )

    def _mlp(self, layer_id: int) -> GatedMLP | SparseMLP:
        prefix, config, names = layer_prefix(layer_id), self._config, self._family.layer
        experts, expert_names = config.experts_of(layer_id), names.experts

        def gated(gate_up: tuple[str, ...], down: str, has_bias: bool) -> GatedMLP:
            return GatedMLP(
                self._linear([prefix + module for module in gate_up], has_bias),
                self._linear([prefix + down], has_bias),
            )

        if experts is None or expert_names is None:
            return gated(names.gate_up, names.down, config.mlp_bias)
        fused = {
            name: torch.empty(shape, dtype=self._dtype, device=self._device)
            for name, shape in expert_shapes(config, experts).items()
        }
        for part in expert_parts(config, experts, expert_names, prefix, self._names):
            every = fused[part.target]
            out = every[:, part.rows] if part.expert is None else every[part.expert, part.rows]
            self._source.copy_into(part.name, out)
            self._on_bytes(self._source.n_bytes(part.name))
        shared = shared_gate = None
        if experts.shared_size is not None:
            shared = gated(expert_names.shared_gate_up, expert_names.shared_down, False)
            shared_gate = self._linear([prefix + expert_names.shared_gate], False)
        return SparseMLP(
            router=self._linear([prefix + expert_names.router], False),
            gate_up=fused["gate_up"],
            down=fused["down"],
            n_active=experts.n_active,
            norm_topk_prob=experts.norm_topk_prob,
            shared=shared,
            shared_gate=shared_gate,
        )

    def norm(self, module: str) -> torch.Tensor:
        """The weight of a norm, in the serving dtype."""
        name = f"{module}.weight"
        offset = self._source.norm_offset
        if offset == 0.0:
            return self.place([name])
        # The sum is made in float32, as the models' authors do.
        exact = self.place([name], torch.float32)
        return exact.add_(offset).to(self._dtype)

    def place(self, names: list[str], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The named tensors, stacked along their rows. dtype: the serving dtype when None."""
        shapes = [self._source.shape(name) for name in names]
        n_rows = sum(shape[0] for shape in shapes)
        out = torch.empty((n_rows, *shapes[0][1:]), dtype=dtype or self._dtype, device=self._device)
        begin = 0
        for name, shape in zip(names, shapes, strict=True):
            rows = out[begin : begin + shape[0]]
            self._source.copy_into(name, rows, self._row_index.get(_within_layer(name)))
            self._on_bytes(self._source.n_bytes(name))
            begin += shape[0]
        return out

    def _linear(self, modules: list[str], has_bias: bool) -> Linear:
        weight = self.place([f"{module}.weight" for module in modules])
        bias = self.place([f"{module}.bias" for module in modules]) if has_bias else None
        return Linear(weight, bias)


def _within_layer(name: str) -> str:
    """The module of a tensor, behind `model.layers.N.`."""
    return ".".join(name.split(".")[3:-1])


def _row_indices(config: ModelConfig, family: Family) -> dict[str, torch.Tensor]:
    """Where rows of half-split modules go, by module: q and k, and their norms."""
    names, head_dim, rotary_dim = family.layer, config.head_dim, config.rotary_dim
    q = interleaved_rows(config.n_heads, head_dim, rotary_dim)
    k = interleaved_rows(config.n_kv_heads, head_dim, rotary_dim)
    if family.qk_norm == "projection":
        found = {names.q_norm: q, names.k_norm: k}
    else:
        one_head = interleaved_rows(1, head_dim, rotary_dim)
        found = {names.q_norm: one_head, names.k_norm: one_head}
    if len(names.qkv) == 3:
        return {**found, names.qkv[0]: q, names.qkv[1]: k}
    v = torch.arange(len(k))
    return {**found, names.qkv[0]: torch.cat((q, len(q) + k, len(q) + len(k) + v))}
