"""A mixture of experts in the decoder on a GPU: the values of the CPU, no wait, one graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from astrai.models import CausalLM, load_model
from astrai.models.execution import layers_for
from astrai.models.mlp import SparseMLP
from astrai.models.workspace import Workspace
from device_sync import no_device_sync

pytestmark = pytest.mark.gpu

# Relative error of a row; rounded router logits may choose another expert in some rows.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def model_on(device: str, dtype: torch.dtype, goldens: Path) -> CausalLM:
    folder = goldens / "tiny" / "qwen3_moe"
    return load_model(folder, device=device, dtype=dtype, progress=False).model


def mix(model: CausalLM, layer_id: int, x: torch.Tensor) -> torch.Tensor:
    ops = layers_for(x.device, x.dtype)
    mlp = model.layers[layer_id].mlp
    assert isinstance(mlp, SparseMLP)
    return mlp(x, ops, ops.silu_mul, Workspace())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layer_id", [0, 2])
@torch.inference_mode()
def test_rows_get_what_they_get_on_a_cpu(layer_id: int, dtype: torch.dtype, goldens: Path) -> None:
    on_cpu = model_on("cpu", torch.float32, goldens)
    on_gpu = model_on("cuda", dtype, goldens)
    for n_rows in (1, 16, 300):
        x = torch.randn(n_rows, on_cpu.config.hidden_size).to(dtype)
        expected = mix(on_cpu, layer_id, x.float())
        out = mix(on_gpu, layer_id, x.cuda()).float().cpu()
        error = (out - expected).norm(dim=1) / expected.norm(dim=1)
        assert (error.max() if dtype == torch.float32 else error.median()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@torch.inference_mode()
def test_nothing_waits_and_one_graph_serves_every_routing(
    dtype: torch.dtype, goldens: Path
) -> None:
    model = model_on("cuda", dtype, goldens)
    x = torch.randn(16, model.config.hidden_size, device="cuda").to(dtype)
    mix(model, 0, x)
    with no_device_sync():
        mix(model, 0, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mix(model, 0, x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, mix(model, 0, x))
