"""Small random models for tests, made with transformers, and the GGUF files of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Glm4Config,
    Glm4ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from astrai.models.families import ExpertNames
from astrai.models.registry import family_of_gguf
from astrai.models.weights_gguf import GGUF_TOP_NAMES, gguf_layer_names

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


# Where GGUF files call a model otherwise than transformers does.
GGUF_ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}


def llama(seed: int = 0, **changes: Any) -> PreTrainedModel:
    return _made(LlamaForCausalLM, LlamaConfig(**{**SIZES, **changes}), seed)


def qwen3(seed: int = 0, **changes: Any) -> PreTrainedModel:
    return _made(Qwen3ForCausalLM, Qwen3Config(**{**SIZES, "head_dim": 32, **changes}), seed)


def qwen2(seed: int = 0, **changes: Any) -> PreTrainedModel:
    return _made(Qwen2ForCausalLM, Qwen2Config(**{**SIZES, **changes}), seed)


def mistral(seed: int = 0, **changes: Any) -> PreTrainedModel:
    return _made(
        MistralForCausalLM, MistralConfig(**{**SIZES, "sliding_window": 6, **changes}), seed
    )


def ministral(seed: int = 0, **changes: Any) -> PreTrainedModel:
    sizes = {**SIZES, "num_hidden_layers": 3, "sliding_window": 6, "head_dim": 16}
    return _made(MinistralForCausalLM, MinistralConfig(**{**sizes, **changes}), seed)


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}


def mixtral(seed: int = 0, **changes: Any) -> PreTrainedModel:
    sizes = {**SIZES, "num_local_experts": 5, "num_experts_per_tok": 2}
    return _made(MixtralForCausalLM, MixtralConfig(**{**sizes, **changes}), seed)


def qwen2_moe(seed: int = 0, **changes: Any) -> PreTrainedModel:
    sizes = {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 48}
    return _made(Qwen2MoeForCausalLM, Qwen2MoeConfig(**{**sizes, **changes}), seed)


def qwen3_moe(seed: int = 0, **changes: Any) -> PreTrainedModel:
    sizes = {**SIZES, **EXPERTS, "head_dim": 32}
    return _made(Qwen3MoeForCausalLM, Qwen3MoeConfig(**{**sizes, **changes}), seed)


def phi3(seed: int = 0, **changes: Any) -> PreTrainedModel:
    sizes = {**SIZES, "pad_token_id": 0, "original_max_position_embeddings": 128}
    return _made(Phi3ForCausalLM, Phi3Config(**{**sizes, **changes}), seed)


def olmo2(seed: int = 0, **changes: Any) -> PreTrainedModel:
    return _made(Olmo2ForCausalLM, Olmo2Config(**{**SIZES, **changes}), seed)


def granite(seed: int = 0, **changes: Any) -> PreTrainedModel:
    scales = {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.4,
    }
    return _made(GraniteForCausalLM, GraniteConfig(**{**SIZES, **scales, **changes}), seed)


def glm4(seed: int = 0, **changes: Any) -> PreTrainedModel:
    sizes = {**SIZES, "head_dim": 16, "pad_token_id": 0}
    return _made(Glm4ForCausalLM, Glm4Config(**{**sizes, **changes}), seed)


GEMMA_SIZES = {**SIZES, "head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": 6}


def gemma2(seed: int = 0, **changes: Any) -> PreTrainedModel:
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
    return _made(Gemma2ForCausalLM, Gemma2Config(**{**GEMMA_SIZES, **caps, **changes}), seed)


def gemma3(seed: int = 0, **changes: Any) -> PreTrainedModel:
    sizes = {**GEMMA_SIZES, "num_hidden_layers": 4, "sliding_window_pattern": 3}
    return _made(Gemma3ForCausalLM, Gemma3TextConfig(**{**sizes, **changes}), seed)


def gemma3_seeing(seed: int = 0) -> PreTrainedModel:
    """The model that also sees pictures."""
    text = {**GEMMA_SIZES, "num_hidden_layers": 3, "sliding_window_pattern": 3}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    config = Gemma3Config(
        text_config=text,
        vision_config={**vision, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
        image_token_index=90,
        boi_token_index=91,
        eoi_token_index=92,
        eos_token_id=[2, 5],
    )
    return _made(Gemma3ForConditionalGeneration, config, seed)


def _made(kind: Callable[[Any], Any], config: Any, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    model: PreTrainedModel = kind(config).eval().float()
    # Initial weights are so small that every mistake is small too; norms of one hide theirs.
    for name, weight in model.named_parameters():
        with torch.no_grad():
            weight.mul_(5.0) if weight.dim() > 1 else weight.add_(torch.rand_like(weight) - 0.5)
            if name.endswith("bias"):
                weight.add_(torch.randn_like(weight))
    return model


def reference_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def llama_interleaved(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """q or k rows as the usual converter to GGUF writes them for llama, by its own formula."""
    shape = weight.shape
    return (
        weight.reshape(n_heads, 2, shape[0] // n_heads // 2, *shape[1:])
        .swapaxes(1, 2)
        .reshape(shape)
    )


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> dict[str, np.ndarray]:
    """Write a model as GGUF with the gguf package's writer. Returns the float32 value that each
    tensor has after quantisation, by Hugging Face name and in Hugging Face row order."""
    config = model.config
    arch = GGUF_ARCHITECTURES.get(config.model_type) or config.model_type.removesuffix("_text")
    n_experts = getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0)
    family = family_of_gguf({"general.architecture": arch, f"{arch}.expert_count": n_experts})
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    add_family_keys(model, writer)
    extra(writer)
    names = {hf: name for name, hf in GGUF_TOP_NAMES.items()}
    stored: dict[str, np.ndarray] = {}
    for hf_name, weight in _unfused(model.state_dict(), family.layer.experts).items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get(hf_name) or _layer_name(hf_name, gguf_layer_names(family.layer))
        values = weight.numpy()
        if "norm" in name:
            values = values + np.float32(family.norm_offset)  # as the usual converter does
        if name.endswith(".ffn_gate_inp_shexp.weight"):
            values = values[0]  # one row, a vector as some converters write it
        kind = quantisation if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(values, kind)
        stored[hf_name] = gguf.quants.dequantize(packed, kind)
        n_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        module = hf_name.split(".")[-2]
        if family.gguf_rows_interleaved and not family.hf_rows_interleaved and module in n_heads:
            packed = llama_interleaved(packed, n_heads[module])
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def add_family_keys(model: PreTrainedModel, writer: gguf.GGUFWriter) -> None:
    """What the usual converter writes beside the sizes."""
    config = model.config
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    n_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if n_experts:
        writer.add_expert_count(n_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in ("qwen2_moe", "qwen3_moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "glm4":
        writer.add_rope_dimension_count(config.head_dim // 2)


def _unfused(
    weights: dict[str, torch.Tensor], experts: ExpertNames | None
) -> dict[str, torch.Tensor]:
    """The weights of a model, those of experts by projection as GGUF files have them."""
    if experts is None:
        return weights
    found: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        module, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            gate, up = weight.chunk(2, dim=1)
            found[f"{module}.{experts.gate}.weight"] = gate.contiguous()
            found[f"{module}.{experts.up}.weight"] = up.contiguous()
        elif last == "down_proj":
            found[f"{module}.{experts.down}.weight"] = weight
        else:
            found[name] = weight
    return found


def _layer_name(hf_name: str, layer_names: dict[str, str]) -> str:
    _, _, layer_id, rest = hf_name.split(".", 3)
    module, _, suffix = rest.rpartition(".")
    (short,) = [name for name, hf in layer_names.items() if hf == module]
    return f"blk.{layer_id}.{short}.{suffix}"
