"""Experts: routing with its ties, the weighted sum against float64, and what a batch must not
change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from toy_models import mixtral, qwen2_moe, qwen3_moe
from transformers import PreTrainedModel

from astrai.models import load_model
from astrai.models.execution import layers_for
from astrai.models.experts import mix_by_expert, mix_densely, route
from astrai.models.layers import Layers
from astrai.models.linear import Linear
from astrai.models.mlp import GatedMLP, SparseMLP
from astrai.models.workspace import Workspace

N_EXPERTS, HIDDEN, SIZE = 6, 40, 24
CPU = torch.device("cpu")


def weights_of(
    dtype: torch.dtype = torch.float32, n_experts: int = N_EXPERTS
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    gate_up = torch.randn(n_experts, 2 * SIZE, HIDDEN, generator=generator) / HIDDEN**0.5
    down = torch.randn(n_experts, HIDDEN, SIZE, generator=generator) / SIZE**0.5
    return gate_up.to(dtype), down.to(dtype)


def rows(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, HIDDEN, generator=torch.Generator().manual_seed(n)).to(dtype)


def mixed64(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """Row by row and expert by expert, in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(len(x)):
        for expert, weight in zip(ids[row].tolist(), weights[row].double(), strict=True):
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            gated = gate * torch.sigmoid(gate) * up
            out[row] += weight * (down[expert].double() @ gated)
    return out


def test_the_heaviest_experts_are_chosen_and_their_weights_scaled_where_asked() -> None:
    logits = torch.tensor([[0.0, 3.0, -1.0, 2.0], [5.0, 1.0, 1.5, 0.0]])
    shares = torch.softmax(logits, dim=1)
    ids, weights = route(logits, 2, norm_topk_prob=False)
    assert ids.tolist() == [[1, 3], [0, 2]]
    torch.testing.assert_close(weights, shares.gather(1, ids))
    scaled_ids, scaled = route(logits, 2, norm_topk_prob=True)
    assert torch.equal(scaled_ids, ids)
    torch.testing.assert_close(scaled, weights / weights.sum(1, keepdim=True))


@pytest.mark.parametrize("n_experts", [4, 60, 128])
def test_of_equal_experts_the_lower_number_is_chosen(n_experts: int) -> None:
    logits = torch.zeros(3, n_experts, dtype=torch.bfloat16)
    logits[1, n_experts - 1] = 1.0
    logits[2] = -torch.inf
    logits[2, 1:3] = 0.0  # the others have no share at all, equally
    ids, weights = route(logits, 3, norm_topk_prob=True)
    assert ids.tolist() == [[0, 1, 2], [n_experts - 1, 0, 1], [1, 2, 0]]
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(1), torch.ones(3))
    assert weights[2, 2] == 0.0


@pytest.mark.parametrize("mix", [mix_by_expert, mix_densely])
@pytest.mark.parametrize("n_rows", [1, 2, 17, 65])
@pytest.mark.parametrize("n_active", [1, 3, N_EXPERTS])
def test_the_sum_is_that_of_float64(
    mix: Callable[..., torch.Tensor], n_rows: int, n_active: int
) -> None:
    x, (gate_up, down) = rows(n_rows), weights_of()
    ids, weights = route(rows(n_rows)[:, :N_EXPERTS] * 2, n_active, norm_topk_prob=False)
    out = mix(x, ids, weights, gate_up, down, layers_for(CPU, x.dtype).silu_mul)
    expected = mixed64(x, ids, weights, gate_up, down)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mix", [mix_by_expert, mix_densely])
@pytest.mark.parametrize("expert", [0, 3, N_EXPERTS - 1])
def test_one_expert_may_get_every_row_and_the_others_none(
    mix: Callable[..., torch.Tensor], expert: int
) -> None:
    x, (gate_up, down) = rows(33), weights_of()
    for idle in set(range(N_EXPERTS)) - {expert}:
        if mix is mix_by_expert:
            gate_up[idle], down[idle] = torch.nan, torch.nan  # not even read
    ids = torch.full((33, 1), expert)
    weights = torch.full((33, 1), 0.5)
    out = mix(x, ids, weights, gate_up, down, Layers().silu_mul)
    expected = mixed64(x, ids, weights, gate_up, down)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_no_rows_give_no_rows() -> None:
    gate_up, down = weights_of()
    ids, weights = route(torch.zeros(0, N_EXPERTS), 2, norm_topk_prob=True)
    out = mix_by_expert(rows(0), ids, weights, gate_up, down, Layers().silu_mul)
    assert out.shape == (0, HIDDEN)


def sparse_mlp(dtype: torch.dtype, n_experts: int) -> SparseMLP:
    generator = torch.Generator().manual_seed(5)

    def linear(n_out: int, n_in: int) -> Linear:
        return Linear((torch.randn(n_out, n_in, generator=generator) / n_in**0.5).to(dtype))

    gate_up, down = weights_of(dtype, n_experts)
    return SparseMLP(
        router=linear(n_experts, HIDDEN),
        gate_up=gate_up,
        down=down,
        n_active=3,
        norm_topk_prob=True,
        shared=GatedMLP(linear(2 * 20, HIDDEN), linear(HIDDEN, 20)),
        shared_gate=linear(1, HIDDEN),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_experts", [6, 60, 128])
def test_a_row_of_a_decode_step_has_the_same_bits_whoever_shares_the_batch(
    dtype: torch.dtype, n_experts: int
) -> None:
    mlp, ops = sparse_mlp(dtype, n_experts), layers_for(CPU, dtype)
    x = rows(16, dtype)
    together = mlp(x, ops, ops.silu_mul, Workspace())
    for row in range(16):
        alone = mlp(x[row : row + 1], ops, ops.silu_mul, Workspace())
        assert torch.equal(alone[0], together[row])
    turned = mlp(x.flip(0), ops, ops.silu_mul, Workspace())
    assert torch.equal(turned.flip(0), together)
    for n_rows in (3, 7, 13):
        assert torch.equal(mlp(x[:n_rows], ops, ops.silu_mul, Workspace()), together[:n_rows])


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe_mixed": lambda: qwen3_moe(
        num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[1], norm_topk_prob=True
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_each_layers_mlp_is_that_of_transformers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    reference = MODELS[name]()
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu", dtype=dtype, progress=False).model
    ops = layers_for(CPU, dtype)
    kinds = []
    for layer, theirs in zip(model.layers, reference.model.layers, strict=True):
        kinds.append(type(layer.mlp))
        for n_rows in (1, 40):
            x = torch.randn(n_rows, 64, generator=torch.Generator().manual_seed(n_rows)).to(dtype)
            with torch.no_grad():
                expected = theirs.mlp(x.float()[None])[0]
            out = layer.mlp(x, ops, ops.silu_mul, Workspace()).float()
            if dtype == torch.float32:
                torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
                continue
            # Rounded router logits may choose another expert of nearly equal weight in some rows.
            error = (out - expected).norm(dim=1) / expected.norm(dim=1)
            assert error.median() < 0.02
    dense = [GatedMLP, GatedMLP, GatedMLP, SparseMLP]
    assert kinds == (dense if "mixed" in name else [SparseMLP] * len(kinds))
