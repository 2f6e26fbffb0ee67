"""`ModelConfig`: the numbers that describe a decoder, whichever file they were read from.

`config_hf.py` and `config_gguf.py` read them. Nothing is allocated here; sizes are compared with
the tensors by the loader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from astrai.models.experts_config import ExpertsConfig
from astrai.models.rope import RopeConfig

__all__ = ["Activation", "ModelConfig"]

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and constants of one decoder-only model."""

    architecture: str  # family name, such as "llama"
    vocab_size: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int  # tokens of context, before RoPE scaling for most types of it
    rope: RopeConfig = field(default_factory=RopeConfig)
    local_rope: RopeConfig | None = None  # of layers that slide; None: `rope` as well
    use_qk_norm: bool = False
    attention_bias: bool = False  # on q, k and v
    o_bias: bool = False
    mlp_bias: bool = False
    experts: ExpertsConfig | None = None  # in place of the MLP of intermediate_size in some layers
    activation: Activation = "silu"  # of the gate
    sliding_window: int | None = None  # keys that a row of a sliding layer sees, its own included
    sliding_pattern: tuple[bool, ...] = (False,)  # which layers slide, repeated over the layers
    sm_scale: float | None = None  # of attention scores; None: head_dim ** -0.5
    attn_soft_cap: float | None = None  # scores become cap * tanh(score / cap)
    logit_soft_cap: float | None = None  # logits likewise, after logit_divisor
    embedding_scale: float = 1.0  # times the token embeddings
    residual_scale: float = 1.0  # times what attention and MLP add to the residual
    logit_divisor: float = 1.0
    context_is_scaled: bool = False  # max_position_embeddings counts RoPE scaling, whatever type
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary pairs need an even one.")
        for rope in (self.rope, self.local_rope):
            if rope is not None:
                rope.check(self.head_dim)
        local = self.local_rope or self.rope
        if local.partial_factor != self.rope.partial_factor:
            raise ValueError("partial_rotary_factor differs by layer type; one is supported.")
        if len(self._switch_lens()) > 1:
            raise ValueError(
                "rope_parameters change their frequencies at a length that differs by layer type; "
                "one is supported."
            )

    @property
    def rotary_dim(self) -> int:
        """Dimensions of each head that rotate, the first ones."""
        return self.rope.rotary_dim(self.head_dim)

    def experts_of(self, layer_id: int) -> ExpertsConfig | None:
        """The experts of this layer; None where it has one MLP."""
        experts = self.experts
        return experts if experts is not None and experts.is_sparse(layer_id) else None

    @property
    def context_len(self) -> int:
        """Tokens of the longest text that configuration and RoPE scaling allow."""
        if self.context_is_scaled:
            return self.max_position_embeddings
        return self.rope.context_len(self.max_position_embeddings)

    @property
    def rope_switch_len(self) -> int | None:
        """Tokens of the longest text with the first rotary frequencies, where longer ones have
        others."""
        return next(iter(self._switch_lens()), None)

    def _switch_lens(self) -> set[int]:
        ropes = (self.rope, self.local_rope or self.rope)
        found = {rope.switch_len(self.max_position_embeddings) for rope in ropes}
        return {switch_len for switch_len in found if switch_len is not None}

    def is_sliding(self, layer_id: int) -> bool:
        return self.sliding_pattern[layer_id % len(self.sliding_pattern)]

    def window_of(self, layer_id: int) -> int | None:
        """Keys that a row of this layer sees, or None for all of them."""
        return self.sliding_window if self.is_sliding(layer_id) else None
