"""Write the default model's GGUF in the other forms that the compared engines read.

A Hugging Face folder (float32 safetensors, for `transformers`) and a BF16 GGUF (for llama.cpp),
both from the dequantised Q4_1 file, so that every engine multiplies by the same numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _hf_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }[name]


def _to_half_split(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Turn llama.cpp's row order of q and k (interleaved pairs) into the half split one."""
    rows, cols = weight.shape
    pairs = weight.reshape(n_heads, rows // n_heads // 2, 2, cols)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, cols))


def _field(reader: gguf.GGUFReader, key: str) -> int | float:
    return reader.fields[key].parts[-1][0].item()


def write_hf_folder(source: Path, folder: Path) -> None:
    """Write config.json and model.safetensors (float32) of a llama GGUF into `folder`."""
    reader = gguf.GGUFReader(source)
    n_heads = int(_field(reader, "llama.attention.head_count"))
    n_kv_heads = int(_field(reader, "llama.attention.head_count_kv"))
    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name:
            weight = _to_half_split(weight, n_heads)
        elif ".attn_k." in tensor.name:
            weight = _to_half_split(weight, n_kv_heads)
        tensors[_hf_name(tensor.name)] = weight
    hidden = int(_field(reader, "llama.embedding_length"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(_field(reader, "llama.feed_forward_length")),
        "num_hidden_layers": int(_field(reader, "llama.block_count")),
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": hidden // n_heads,
        "rms_norm_eps": float(_field(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(_field(reader, "llama.rope.freq_base")),
        "max_position_embeddings": int(_field(reader, "llama.context_length")),
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_bf16_gguf(source: Path, target: Path) -> None:
    """Copy a GGUF with its metadata, every matrix as BF16 and every vector as F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    skip = {"general.architecture", "general.file_type", "general.quantization_version"}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in skip:
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    bf16 = gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if weight.ndim > 1:
            packed = gguf.quants.quantize(weight, bf16)
            writer.add_tensor(tensor.name, packed, raw_shape=packed.shape, raw_dtype=bf16)
        else:
            writer.add_tensor(tensor.name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
