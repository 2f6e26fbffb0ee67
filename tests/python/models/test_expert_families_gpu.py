"""Families with experts on a GPU against transformers, on small random models of its making.

Experts are chosen by rounded logits, so in bfloat16 and float16 single rows may go through other
ones than in float32, ours as transformers' own: both are measured against float32, and the half of
the rows that came out better decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toy_models

from astrai.models import load_model

pytestmark = pytest.mark.gpu

MAKERS = {
    "mixtral": toy_models.mixtral,
    "qwen2_moe": toy_models.qwen2_moe,
    "qwen3_moe": toy_models.qwen3_moe,
}
N_TOKENS = (1, 16, 500)  # a tile size of the grouped products each
FLOAT32_TOLERANCE = 1e-3


def row_errors(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    reference = reference.double().cpu()
    return (logits.double().cpu() - reference).norm(dim=1) / reference.norm(dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
@torch.inference_mode()
def test_logits_are_as_close_to_float32_as_those_of_transformers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    maker: Callable[..., torch.nn.Module] = MAKERS[name]
    theirs = maker(max_position_embeddings=512)
    theirs.save_pretrained(tmp_path)  # type: ignore[operator]
    model = load_model(tmp_path, device="cuda", dtype=dtype, progress=False).model
    texts = [[(7 * i * i + n) % 96 for i in range(n)] for n in N_TOKENS]
    references = [theirs(torch.tensor([ids])).logits[0] for ids in texts]
    theirs = theirs.cuda().to(dtype)
    for ids, reference in zip(texts, references, strict=True):
        on_card = torch.tensor(ids, device="cuda")
        logits = model.forward(on_card, torch.arange(len(ids), device="cuda"), None)
        ours = row_errors(logits, reference)
        if dtype == torch.float32:
            assert ours.max() < FLOAT32_TOLERANCE
        else:
            peer = row_errors(theirs(on_card[None]).logits[0], reference)
            assert ours.median() <= 1.5 * peer.median()
