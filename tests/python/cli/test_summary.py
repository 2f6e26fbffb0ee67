"""What the start tells of a model: family, size, types, context, ends of text, template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from astrai.cli.start_times import StartTimes
from astrai.cli.summary import model_rows, summary
from astrai.engine import InferenceEngine
from astrai.models import load_model
from astrai.models.config_hf import config_from_hf
from astrai.models.weights import expected_shapes
from astrai.server import ServerSettings

CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 100,
    "sliding_window": 9,
    "eos_token_id": [2, 5],
    "rope_scaling": {"type": "linear", "factor": 2.0},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "eos_token_id": 7}')
    tensors = {
        name: torch.zeros(shape, dtype=torch.float16)
        for name, shape in expected_shapes(config_from_hf(CONFIG))
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def shown(folder: Path, **settings: object) -> dict[str, str]:
    loaded = load_model(folder, device="cpu", dtype="float32", progress=False)
    with InferenceEngine(loaded.model, None, sampling_defaults=loaded.sampling) as engine:
        given = ServerSettings(**settings)  # type: ignore[arg-type]
        text = summary("http://x", given, model_rows(given, loaded, engine), StartTimes())
    return {line[2:12].strip(): line[12:].strip() for line in text.splitlines()[1:]}


def test_the_summary_describes_the_model(folder: Path) -> None:
    rows = shown(folder)
    n_parameters = sum(torch.Size(s).numel() for _, s in expected_shapes(config_from_hf(CONFIG)))
    assert f"(mistral, safetensors of F16): {n_parameters / 1e6:.1f} M" in rows["model"]
    assert rows["model"].endswith("parameters in 3 layers")
    assert rows["device"].startswith("cpu, 0 MB of weights in float32, loaded in ")
    assert rows["context"] == "200 tokens (RoPE scaling linear), windows of 9"
    assert rows["text"] == "no tokenizer: token ids only; texts end at ids 2, 5, 7"
    assert "sampling" not in rows and "tokens" not in rows
    assert shown(folder, itl_target_ms=50.0)["tokens"].startswith("50 ms apart")


def test_the_summary_tells_the_sampling_defaults_in_force(folder: Path) -> None:
    expected = "temperature 0.5 where a request gives none (generation_config.json)"
    assert shown(folder, generation_config="auto")["sampling"] == expected
    (folder / "generation_config.json").unlink()
    expected = "generation_config.json gives no defaults"
    assert shown(folder, generation_config="auto")["sampling"] == expected
