"""Where weights come from, and which ones a model must have.

A `WeightSource` (safetensors folder, GGUF file) offers tensors under the canonical names below,
which are those of Hugging Face checkpoints. `expected_shapes` lists what a ModelConfig needs;
`check_weights` compares the two before a byte is allocated."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

import torch

from astrai.models.config import ModelConfig
from astrai.models.errors import ModelLoadError
from astrai.models.expert_weights import expert_parts, router_sizes
from astrai.models.families import Family, LayerNames
from astrai.models.registry import family_named

__all__ = [
    "WeightSource",
    "check_weights",
    "expected_shapes",
    "interleaved_rows",
    "is_ignored",
    "layer_prefix",
    "not_finite",
]


class WeightSource(Protocol):
    """Tensors of one checkpoint, read one at a time."""

    # True when q and k rows (and their norms) already pair neighbours (0,1), (2,3), ...
    rows_interleaved: bool
    norm_offset: float  # what norm weights leave out, to be added

    def names(self) -> set[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def n_bytes(self, name: str) -> int:
        """Bytes the tensor takes in its file."""
        ...

    def where(self, name: str | None = None) -> str:
        """The file that holds the tensor, or the checkpoint, for messages."""
        ...

    def copy_into(
        self, name: str, out: torch.Tensor, row_index: torch.Tensor | None = None
    ) -> None:
        """Write a tensor into `out`, of the same shape, in out's dtype and on out's device.
        row_index: int64 on out's device, row r of the file goes to row row_index[r] of out.
        Raises ModelLoadError, see `not_finite`, for a NaN or an infinity."""
        ...


def layer_prefix(layer_id: int) -> str:
    return f"model.layers.{layer_id}."


def expected_shapes(
    config: ModelConfig, present: Collection[str] = ()
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor the model needs; an iterator, since n_layers is input.
    present: the names a checkpoint has, which tell the layout of its experts."""
    yield "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, config.hidden_size)
    yield "model.norm.weight", (config.hidden_size,)
    family = family_named(config.architecture)
    norms = _norm_sizes(config, family)
    attention, mlp = _attention_sizes(config, family.layer), _mlp_sizes(config, family.layer)
    for layer_id in range(config.n_layers):
        prefix = layer_prefix(layer_id)
        for name, size in norms:
            yield f"{prefix}{name}.weight", (size,)
        for name, n_rows, n_columns, has_bias in attention:
            yield f"{prefix}{name}.weight", (n_rows, n_columns)
            if has_bias:
                yield f"{prefix}{name}.bias", (n_rows,)
        experts, names = config.experts_of(layer_id), family.layer.experts
        if experts is None or names is None:
            for name, n_rows, n_columns in mlp:
                yield f"{prefix}{name}.weight", (n_rows, n_columns)
                if config.mlp_bias:
                    yield f"{prefix}{name}.bias", (n_rows,)
            continue
        for name, n_rows, n_columns in router_sizes(config, experts, names):
            yield f"{prefix}{name}.weight", (n_rows, n_columns)
        for part in expert_parts(config, experts, names, prefix, present):
            yield part.name, part.shape


def _norm_sizes(config: ModelConfig, family: Family) -> list[tuple[str, int]]:
    """(module, size) of each norm of a layer."""
    names = family.layer
    found = (names.input_norm, names.attention_norm, names.mlp_input_norm, names.mlp_norm)
    sizes = [(name, config.hidden_size) for name in found if name is not None]
    if config.use_qk_norm:
        is_whole = family.qk_norm == "projection"
        sizes.append((names.q_norm, config.head_dim * (config.n_heads if is_whole else 1)))
        sizes.append((names.k_norm, config.head_dim * (config.n_kv_heads if is_whole else 1)))
    return sizes


def _attention_sizes(config: ModelConfig, names: LayerNames) -> list[tuple[str, int, int, bool]]:
    """(module, rows, columns, has a bias) of each projection of attention."""
    hidden = config.hidden_size
    q_rows, kv_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    qkv = (q_rows, kv_rows, kv_rows) if len(names.qkv) == 3 else (q_rows + 2 * kv_rows,)
    return [
        *((name, n, hidden, config.attention_bias) for name, n in zip(names.qkv, qkv, strict=True)),
        (names.o, hidden, q_rows, config.o_bias),
    ]


def _mlp_sizes(config: ModelConfig, names: LayerNames) -> list[tuple[str, int, int]]:
    """(module, rows, columns) of each projection of a layer's one MLP."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    gate_up = (ffn, ffn) if len(names.gate_up) == 2 else (2 * ffn,)
    return [
        *((name, n, hidden) for name, n in zip(names.gate_up, gate_up, strict=True)),
        (names.down, hidden, ffn),
    ]


def check_weights(config: ModelConfig, source: WeightSource) -> None:
    """Raises ModelLoadError for the first tensor that is missing, misshapen or not wanted."""
    present = source.names()
    unused = set(present)
    for name, shape in expected_shapes(config, present):
        if name not in unused:
            raise ModelLoadError(
                source.where(),
                f"tensor {name!r} is missing (the configuration asks for {config.n_layers} "
                f"layers).",
                "Check that every shard is there and that it belongs to this configuration.",
            )
        unused.remove(name)
        if source.shape(name) != shape:
            raise ModelLoadError(
                source.where(name),
                f"tensor {name!r} has shape {list(source.shape(name))}, the configuration asks "
                f"for {list(shape)}.",
                "Use the configuration that was saved with these weights.",
            )
    if config.tie_word_embeddings:
        unused.discard("lm_head.weight")  # some checkpoints store the tied matrix twice
    for name in sorted(unused):
        if not is_ignored(name):
            raise ModelLoadError(
                source.where(name),
                f"tensor {name!r} has no place in a {config.architecture} model of "
                f"{config.n_layers} layers.",
                "Use the configuration that was saved with these weights.",
            )


def is_ignored(name: str) -> bool:
    """Is this a table that old checkpoints carry beside their weights?"""
    return name.endswith("rotary_emb.inv_freq")


def not_finite(where: str | Path, name: str, dtype: torch.dtype) -> ModelLoadError:
    """The error of a tensor that holds NaN or infinity once it is in the serving dtype."""
    remedy = "The checkpoint is damaged, or its training failed: fetch it again."
    if dtype == torch.float16:
        remedy += " Values beyond 65504 leave float16's range: try --dtype bfloat16."
    return ModelLoadError(where, f"tensor {name!r} holds NaN or infinite values.", remedy)


def interleaved_rows(n_heads: int, head_dim: int, rotary_dim: int) -> torch.Tensor:
    """int64 [n_heads * head_dim]: where each row of a half-split projection goes so that the pair
    (i, i + rotary_dim / 2) of a head lies side by side at (2i, 2i + 1); rows of a head from
    rotary_dim on stay."""
    row = torch.arange(n_heads * head_dim)
    within = row % head_dim
    half = rotary_dim // 2
    paired = (within % half) * 2 + within // half
    return row - within + torch.where(within < rotary_dim, paired, within)
