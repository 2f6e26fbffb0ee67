"""Folders of random bfloat16 weights in the shapes of published models, as Hugging Face lays them
out, with a tokenizer of one word for each id. Written at the speed of the disk's cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "eos_token_id": 128001,
}
_QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,  # Llama-3.1-8B
    "qwen": _QWEN,  # Qwen3-0.6B
    "1b": {  # Llama-3.2-1B
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
    },
    "tiny": {  # to try a benchmark out
        **_QWEN,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 16,
        "vocab_size": 16384,
        "eos_token_id": 1,
    },
}
_SHARD_BYTES = 1 << 30
_BLOCK_VALUES = 1 << 25  # a tensor's values repeat after so many


def write_folder(folder: Path, shape: str) -> bool:
    """Whether it had to be written: an index file says that it is there."""
    from astrai.models.config_hf import config_from_hf
    from astrai.models.weights import expected_shapes

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    config = SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder, config["vocab_size"])
    values = torch.randn(_BLOCK_VALUES, generator=torch.Generator().manual_seed(0))
    block = values.mul_(0.02).to(torch.bfloat16).view(torch.uint8).numpy().data
    shards = list(_shards(dict(expected_shapes(config_from_hf(config)))))
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    with ThreadPoolExecutor() as pool:
        for written in [
            pool.submit(_write_shard, folder / name, tensors, block)
            for name, tensors in zip(names, shards, strict=True)
        ]:
            written.result()
    placed = {t: name for name, shard in zip(names, shards, strict=True) for t in shard}
    index.write_text(json.dumps({"weight_map": placed}))
    return True


def _shards(sizes: dict[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Tensors by file, each file of about _SHARD_BYTES."""
    shard: dict[str, tuple[int, ...]] = {}
    n_bytes = 0
    for name, size in sizes.items():
        shard[name] = size
        n_bytes += 2 * torch.Size(size).numel()
        if n_bytes >= _SHARD_BYTES:
            yield shard
            shard, n_bytes = {}, 0
    if shard:
        yield shard


def _write_shard(path: Path, sizes: dict[str, tuple[int, ...]], block: memoryview) -> None:
    header: dict[str, object] = {}
    end = 0
    for name, size in sizes.items():
        begin, end = end, end + 2 * torch.Size(size).numel()
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for size in sizes.values():
            n_bytes = 2 * torch.Size(size).numel()
            if len(size) == 1:  # a norm
                file.write(b"\x80\x3f" * size[0])
                continue
            for begin in range(0, n_bytes, len(block)):
                file.write(block[: min(len(block), n_bytes - begin)])


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"w{i}": i for i in range(vocab_size)},
            "unk_token": "w0",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "w0"}))
