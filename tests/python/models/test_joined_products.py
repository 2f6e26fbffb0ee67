"""Products that join what stands before and behind them: the decoder asks for the same sums.

With torch operations, which is what layers without the kernel do; the kernel has tests of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from astrai.models.build import build_model
from astrai.models.config import ModelConfig
from astrai.models.layers import Layers
from astrai.models.linear import Linear
from astrai.models.random_weights import RandomWeights

MAX_ROWS = 16


class JoinedLayers(Layers):
    """Counts its products."""

    def __init__(self) -> None:
        self.n_joined = 0

    def max_joined_rows(self, row_len: int) -> int:
        return MAX_ROWS

    def norm_linear(self, *args: Any) -> torch.Tensor:
        self.n_joined += 1
        return super().norm_linear(*args)

    def add_linear(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> None:
        self.n_joined += 1
        super().add_linear(x, linear, residual)


def config_of(**options: object) -> ModelConfig:
    return ModelConfig(
        **{
            "architecture": "llama",
            "vocab_size": 101,
            "hidden_size": 48,
            "n_layers": 3,
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 16,
            "intermediate_size": 80,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "max_position_embeddings": 64,
        }
        | options  # type: ignore[arg-type]
    )


def logits_of(config: ModelConfig, ids: torch.Tensor) -> torch.Tensor:
    weights = RandomWeights(config, std=0.3)
    model = build_model(
        config, weights, device=torch.device("cpu"), dtype=torch.float32, max_len=64
    )
    return model.forward(ids, torch.arange(len(ids)), None)


@pytest.mark.parametrize("n_rows", [1, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize("use_qk_norm", [False, True])
def test_joined_products_give_the_same_logits(
    n_rows: int, use_qk_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(use_qk_norm=use_qk_norm)
    ids = torch.arange(n_rows) * 7 % 101
    expected = logits_of(config, ids)
    layers = JoinedLayers()
    monkeypatch.setattr("astrai.models.decoder.layers_for", lambda *_: layers)
    torch.testing.assert_close(logits_of(config, ids), expected, rtol=1e-4, atol=1e-4)
    assert layers.n_joined == (4 * config.n_layers if n_rows <= MAX_ROWS else 0)


def test_a_model_with_more_between_its_products_joins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = JoinedLayers()
    monkeypatch.setattr("astrai.models.decoder.layers_for", lambda *_: layers)
    for options in ({"activation": "gelu"}, {"residual_scale": 0.5}):
        logits_of(config_of(**options), torch.arange(3))
    assert layers.n_joined == 0
