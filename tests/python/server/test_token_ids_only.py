"""A folder without tokenizer files, served by a real engine: ids in, ids out, text refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from live_server import Live
from transformers import LlamaConfig, LlamaForCausalLM

from astrai.engine import InferenceEngine

PROMPT = [3, 17, 50]


def test_a_folder_without_tokenizer_files_serves_token_ids(
    start_server: Callable[..., Live], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    reference = LlamaForCausalLM(config).eval().float()
    reference.save_pretrained(tmp_path)
    with InferenceEngine.from_pretrained(tmp_path, device="cpu", dtype="float32") as engine:
        live = start_server(engine)
        body: dict[str, Any] = {
            "prompt": PROMPT,
            "max_tokens": 5,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        response = live.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        ids = torch.tensor([PROMPT])
        expected = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False
        )[0, len(PROMPT) :].tolist()
        assert response.json()["choices"][0]["token_ids"][: len(expected)] == expected
        refused = {
            "/v1/completions": {"prompt": "text"},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "text"}]},
            "/v1/messages": {"messages": [{"role": "user", "content": "text"}], "max_tokens": 2},
            "/tokenize": {"prompt": "text"},
        }
        for path, request in refused.items():
            response = live.post(path, request)
            assert response.status_code == 400, path
            assert "tokenizer" in response.json()["detail"], path
        assert live.post("/v1/completions", body).status_code == 200
