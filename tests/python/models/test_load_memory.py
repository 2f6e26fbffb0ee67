"""Loading takes little memory beside the weights and the mapped files, whatever their size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from astrai.models.config_hf import config_from_hf
from astrai.models.weights import expected_shapes

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 140_000,  # most of the weights in one tensor
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
N_SHARDS = 4
MOST_BESIDE = 130e6  # the pages mapped at a time (64 MiB) and pieces of tensors

# A process of its own: the peak of this one counts every test before.
CHILD = """
import sys
from astrai.models import load_model

def kilobytes(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1])

load_model(sys.argv[1], device="cpu", dtype="float32", progress=False)  # libraries come in
before = kilobytes("VmRSS")
loaded = load_model(sys.argv[2], device="cpu", dtype="float32", progress=False)
print(loaded.summary["weight_bytes"], 1024 * (kilobytes("VmHWM") - before))
"""


def write_sharded(folder: Path, config: dict[str, object]) -> int:
    """Weights of zeros in bfloat16. Returns their bytes."""
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        name: torch.zeros(shape, dtype=torch.bfloat16)
        for name, shape in expected_shapes(config_from_hf(config))
    }
    placed = {}
    for n in range(N_SHARDS):
        file_name = f"model-{n + 1:05}-of-{N_SHARDS:05}.safetensors"
        shard = {name: tensors[name] for name in list(tensors)[n::N_SHARDS]}
        save_file(shard, folder / file_name)
        placed.update(dict.fromkeys(shard, file_name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peaks from /proc")
def test_loading_holds_no_second_copy_of_the_weights(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.mkdir()
    small.mkdir()
    n_stored = write_sharded(large, CONFIG)
    write_sharded(small, {**CONFIG, "num_hidden_layers": 1, "vocab_size": 64})
    command = [sys.executable, "-c", CHILD, str(small), str(large)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    weight_bytes, peak = map(int, done.stdout.split())
    assert weight_bytes == 2 * n_stored
    assert n_stored > 2 * MOST_BESIDE, "too small to tell a copy from the rest"
    assert peak - weight_bytes < MOST_BESIDE
