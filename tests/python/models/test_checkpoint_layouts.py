"""Layouts of the same weights: experts fused or apart, text beside vision, names old and new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_models import (
    gemma3_seeing,
    mixtral,
    qwen2_moe,
    qwen3_moe,
    reference_logits,
    write_gguf,
)
from transformers import PreTrainedModel

from astrai.models import LoadedModel, ModelLoadError, load_model
from astrai.models.config_hf import config_from_hf
from astrai.models.gguf_file import GGUFFile
from astrai.models.mlp import SparseMLP
from astrai.models.renamed_weights import RenamedSource
from astrai.models.weights_hf import SafetensorsSource

IDS = [3, 17, 89, 4, 4, 61, 33, 8, 71, 25, 2, 19, 50, 7]
TOLERANCE = 1e-4  # float32 sums in another order, on logits of size 10


def load(path: Path) -> LoadedModel:
    return load_model(path, device="cpu", dtype="float32", progress=False)


def assert_same_logits(loaded: LoadedModel, reference: PreTrainedModel) -> None:
    logits = loaded.model.forward(torch.tensor(IDS), torch.arange(len(IDS)), None)
    torch.testing.assert_close(
        logits, reference_logits(reference, IDS), atol=TOLERANCE, rtol=TOLERANCE
    )


def save_as(folder: Path, reference: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    reference.config.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "architectures": [type(reference).__name__]}))
    save_file(
        {name: weight.clone() for name, weight in tensors.items()}, folder / "model.safetensors"
    )


@pytest.mark.parametrize("make", [mixtral, qwen2_moe, qwen3_moe])
def test_experts_fused_by_transformers_5_are_those_of_published_files(
    make: Any, tmp_path: Path
) -> None:
    reference = make()
    reference.save_pretrained(tmp_path / "each")
    names = load_file(tmp_path / "each" / "model.safetensors").keys()
    assert any(".experts.3." in name for name in names)
    tensors = reference.state_dict()
    assert any(name.endswith(".experts.gate_up_proj") for name in tensors)
    save_as(tmp_path / "fused", reference, tensors)
    each, fused = load(tmp_path / "each"), load(tmp_path / "fused")
    assert_same_logits(each, reference)
    for one, other in zip(each.model.parameters(), fused.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_misshapen_tensor_of_fused_experts_is_named(tmp_path: Path) -> None:
    reference = qwen3_moe()
    tensors = reference.state_dict()
    name = "model.layers.1.mlp.experts.gate_up_proj"
    tensors[name] = tensors[name][:-1]
    save_as(tmp_path, reference, tensors)
    with pytest.raises(ModelLoadError, match=rf"{name}' has shape \[7, 64, 64\]"):
        load(tmp_path)


def old_mixtral_gguf(path: Path, reference: PreTrainedModel) -> None:
    """As converters wrote Mixtral at first: each expert by itself."""
    whole = path.with_name("whole")
    write_gguf(
        whole,
        reference,
        extra=lambda writer: (
            writer.add_expert_count(5),
            writer.add_expert_used_count(2),
        ),
    )
    file = GGUFFile(whole)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in file.metadata.items():
        if key.startswith("llama."):
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(key, value)
    for name, tensor in file.tensors.items():
        n_rows = tensor.n_bytes // tensor.row_bytes
        values = file.rows(tensor, 0, n_rows).view("<f4").reshape(tensor.shape).copy()
        if "_exps" not in name:
            writer.add_tensor(name, values)
            continue
        for expert, matrix in enumerate(values):
            writer.add_tensor(name.replace("_exps.", f".{expert}."), matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole.unlink()


def test_old_gguf_files_with_each_expert_by_itself_are_read(tmp_path: Path) -> None:
    reference = mixtral()
    old_mixtral_gguf(tmp_path / "old.gguf", reference)
    assert "blk.1.ffn_gate.4.weight" in GGUFFile(tmp_path / "old.gguf").tensors
    loaded = load(tmp_path)
    assert loaded.config.architecture == "mixtral"
    assert_same_logits(loaded, reference)


def published_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gemma 3's names as its authors published them."""
    renamed = {}
    for name, weight in tensors.items():
        if name == "lm_head.weight":
            continue  # tied
        name = name.removeprefix("model.")
        renamed[name.replace("language_model.", "language_model.model.", 1)] = weight
    return renamed


@pytest.mark.parametrize("names", ["published", "saved", "new"])
def test_the_text_part_of_a_model_that_sees_is_served(names: str, tmp_path: Path) -> None:
    reference = gemma3_seeing()
    tensors = reference.state_dict()
    if names == "saved":
        reference.save_pretrained(tmp_path)
    else:
        save_as(tmp_path, reference, published_names(tensors) if names == "published" else tensors)
    stored = load_file(tmp_path / "model.safetensors").keys()
    if names == "published":
        assert "language_model.model.layers.0.mlp.up_proj.weight" in stored
        assert any(name.startswith("vision_tower.") for name in stored)
    loaded = load(tmp_path)
    assert_same_logits(loaded, reference)
    n_vision = sum("vision_tower." in name for name in stored)
    assert n_vision > 0
    found = {module.removeprefix("model."): n for module, n in loaded.summary["left_out"].items()}
    assert found == {"vision_tower": n_vision, "multi_modal_projector": 2}
    assert set(loaded.end_ids) == {2, 5}


def test_the_published_config_of_gemma3_4b_is_read() -> None:
    """It leaves out what its authors' code had as defaults."""
    config = config_from_hf(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        }
    )
    assert (config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == (34, 8, 4, 256)
    assert (config.vocab_size, config.max_position_embeddings) == (262208, 131072)
    assert config.eos_token_ids == (1, 106)
    assert config.tie_word_embeddings
    assert [config.window_of(layer_id) for layer_id in (4, 5)] == [1024, None]
    assert (config.rope.rope_type, config.rope.factor, config.rope.theta) == ("linear", 8.0, 1e6)
    assert config.local_rope is not None
    assert (config.local_rope.rope_type, config.local_rope.theta) == ("default", 1e4)


@pytest.mark.parametrize("value", [[], "text", 3])
def test_a_text_config_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="text_config must be an object"):
        config_from_hf({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": value})


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    save_file(
        {"language_model.model.norm.weight": torch.ones(2), "model.norm.weight": torch.ones(2)},
        tmp_path / "model.safetensors",
    )
    source = SafetensorsSource(tmp_path)
    with pytest.raises(ModelLoadError, match=r"language_model.model.norm.*same weight"):
        RenamedSource(source, [("language_model.model.", "model.")])


def test_quantised_experts_of_gguf_files_have_the_values_of_their_blocks(tmp_path: Path) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)
        writer.add_expert_used_count(3)
        writer.add_expert_feed_forward_length(32)

    stored = write_gguf(
        tmp_path / "m.gguf", qwen3_moe(), gguf.GGMLQuantizationType.Q8_0, extra=extra
    )
    mlp = load(tmp_path).model.layers[1].mlp
    assert isinstance(mlp, SparseMLP)
    for begin, name in enumerate(("gate_proj", "up_proj")):
        expected = torch.from_numpy(stored[f"model.layers.1.mlp.experts.{name}.weight"])
        assert torch.equal(mlp.gate_up[:, begin * 32 : begin * 32 + 32], expected)
    down = torch.from_numpy(stored["model.layers.1.mlp.experts.down_proj.weight"])
    assert torch.equal(mlp.down, down)
