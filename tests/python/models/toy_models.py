"""Small random models for tests, made with transformers, and the GGUF files of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from astrai.models.weights_gguf import GGUF_LAYER_NAMES, GGUF_TOP_NAMES

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


def llama(seed: int = 0, **changes: Any) -> PreTrainedModel:
    return _made(LlamaForCausalLM, LlamaConfig(**{**SIZES, **changes}), seed)


def qwen3(seed: int = 0, **changes: Any) -> PreTrainedModel:
    return _made(Qwen3ForCausalLM, Qwen3Config(**{**SIZES, "head_dim": 32, **changes}), seed)


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
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    extra(writer)
    names = {hf: name for name, hf in GGUF_TOP_NAMES.items()}
    stored: dict[str, np.ndarray] = {}
    for hf_name, weight in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get(hf_name) or _layer_name(hf_name)
        values = weight.numpy()
        kind = quantisation if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(values, kind)
        stored[hf_name] = gguf.quants.dequantize(packed, kind)
        n_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        module = hf_name.split(".")[-2]
        if arch == "llama" and module in n_heads:
            packed = llama_interleaved(packed, n_heads[module])
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def _layer_name(hf_name: str) -> str:
    _, _, layer_id, rest = hf_name.split(".", 3)
    module, _, suffix = rest.rpartition(".")
    (short,) = [name for name, hf in GGUF_LAYER_NAMES.items() if hf == module]
    return f"blk.{layer_id}.{short}.{suffix}"
