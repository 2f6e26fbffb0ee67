"""What sets one model family apart: a description, filled in by one small file per family.

The decoder itself (`decoder.py`) is the same for all of them. Names of tensors are here; numbers
become fields of `ModelConfig`, so the decoder never asks which family it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from astrai.models.config_keys import Keys

__all__ = ["ExpertNames", "Family", "LayerNames"]


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules of a layer with experts, behind `model.layers.N.`, but for the first three."""

    gate: str = "gate_proj"  # of one expert, behind `{experts}.M.`, or of all behind `{experts}.`
    up: str = "up_proj"
    down: str = "down_proj"
    experts: str = "mlp.experts"
    router: str = "mlp.gate"
    # Of the expert that all rows go through, where there is one.
    shared_gate_up: tuple[str, str] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Modules of one layer, behind `model.layers.N.`, by what they do. None: there is none."""

    input_norm: str | None = "input_layernorm"
    attention_norm: str | None = None  # on what attention adds to the residual
    mlp_input_norm: str | None = "post_attention_layernorm"
    mlp_norm: str | None = None  # on what the MLP adds to the residual
    q_norm: str = "self_attn.q_norm"  # where the family has norms of q and k
    k_norm: str = "self_attn.k_norm"
    # Query, key and value; a single name holds the rows of all three, in that order.
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    o: str = "self_attn.o_proj"
    # Gate and up; a single name holds the rows of both, in that order.
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    experts: ExpertNames | None = None  # where some layers have them in place of gate_up and down


def _no_fields(keys: Keys) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of decoder-only models."""

    name: str
    hf_architectures: tuple[str, ...]  # entries of config.json "architectures"
    gguf_architecture: str | None  # value of the GGUF key general.architecture
    layer: LayerNames = field(default_factory=LayerNames)
    # RMS norm of q and k before rotary: of each head, or of all heads as one vector.
    qk_norm: Literal["head", "projection"] | None = None
    # What config.json leaves out of norm weights: the norm multiplies by weight + norm_offset.
    # GGUF files hold the sum.
    norm_offset: float = 0.0
    # Do q and k rows pair neighbours (0, 1), (2, 3) already, or halves (i, i + rotary_dim / 2)?
    # The usual converter to GGUF permutes them for some families.
    hf_rows_interleaved: bool = False
    gguf_rows_interleaved: bool = False
    # (part of a tensor's name in a Hugging Face folder, what the names here have in its place); a
    # part that begins with a dot may stand anywhere, another one only at the beginning.
    hf_renames: tuple[tuple[str, str], ...] = ()
    hf_ignored: tuple[str, ...] = ()  # beginnings of the names of tensors that text does not need
    hf_bias_key: str = "attention_bias"  # the key of config.json for biases of q, k and v
    has_o_bias: bool = True  # does hf_bias_key mean the output projection as well
    # Which layers slide where config.json has a sliding_window and no layer_types, repeated over
    # the layers. None: this family has no windows, and files that ask for one are refused.
    sliding_pattern: tuple[bool, ...] | None = None
    # Values of config.json keys that a file may leave out, as the family's authors define them.
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)
    # Fields of ModelConfig that only some families have, from config.json and GGUF metadata.
    hf_fields: Callable[[Keys], Mapping[str, Any]] = _no_fields
    gguf_fields: Callable[[Keys], Mapping[str, Any]] = _no_fields
