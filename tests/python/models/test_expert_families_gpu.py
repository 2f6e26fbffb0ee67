"""Families with experts on a GPU against transformers, on small random models of its making.

Experts are chosen by rounded logits, so in bfloat16 and float16 single rows may go through other
ones than in float32, ours as transformers' own: both are measured against float32, and the half of
the rows that came out better decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_models
from toy_models import reference_logits
from transformers import PreTrainedModel

from astrai.models import load_model

pytestmark = pytest.mark.gpu

MAKERS: dict[str, Callable[..., PreTrainedModel]] = {
    "mixtral": toy_models.mixtral,
    "qwen2_moe": toy_models.qwen2_moe,
    "qwen3_moe": toy_models.qwen3_moe,
}
# Texts of one length each: single rows, and both other tile sizes of the grouped products.
N_TOKENS = {"tiles of 16": [1] * 16, "tiles of 64": [60], "tiles of 128": [500]}
FLOAT32_TOLERANCE = 1e-3
MOST_OF_THEIR_ERROR = 1.5


def row_errors(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    reference = reference.double()
    return (logits.double() - reference).norm(dim=1) / reference.norm(dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tiles", N_TOKENS)
@pytest.mark.parametrize("name", MAKERS)
@torch.inference_mode()
def test_logits_are_as_close_to_float32_as_those_of_transformers(
    name: str, tiles: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs: Any = MAKERS[name](max_position_embeddings=512)
    theirs.save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cuda", dtype=dtype, progress=False).model
    texts = [[(7 * i * i + 3 * k) % 96 for i in range(n)] for k, n in enumerate(N_TOKENS[tiles])]
    references = [reference_logits(theirs, ids) for ids in texts]
    theirs = theirs.to(dtype)
    ours, peer = [], []
    for ids, reference in zip(texts, references, strict=True):
        positions = torch.arange(len(ids), device="cuda")
        logits = model.forward(torch.tensor(ids, device="cuda"), positions, None)
        ours.append(row_errors(logits.cpu(), reference))
        peer.append(row_errors(reference_logits(theirs, ids), reference))
    if dtype == torch.float32:
        assert torch.cat(ours).max() < FLOAT32_TOLERANCE
    else:
        assert torch.cat(ours).median() <= MOST_OF_THEIR_ERROR * torch.cat(peer).median()
