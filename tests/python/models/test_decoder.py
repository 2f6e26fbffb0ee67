"""The decoder against transformers on small random models, and against the stored references."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_models import LLAMA3, llama, qwen3, reference_logits
from transformers import PreTrainedModel

from astrai.kvcache import PagePool
from astrai.models import CausalLM, LoadedModel, load_model

IDS = [3, 17, 90, 4, 4, 61, 33, 8, 71, 25, 2, 19, 50]
TOLERANCE = 2e-4  # float32 sums in another order, on logits of size 10

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "llama_tied": lambda: llama(tie_word_embeddings=True),
    "llama_biased": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama_head_dim": lambda: llama(head_dim=24),
    "llama_llama3": lambda: llama(rope_scaling=LLAMA3),
    "llama_linear": lambda: llama(rope_scaling={"rope_type": "linear", "factor": 2.0}),
    "llama_yarn": lambda: llama(
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    ),
    "qwen3": qwen3,
    "qwen3_tied": lambda: qwen3(tie_word_embeddings=True),
}


def saved(model: PreTrainedModel, folder: Path, **options: Any) -> LoadedModel:
    model.save_pretrained(folder, **options)
    return load_model(folder, device="cpu", dtype="float32", progress=False)


def positions(ids: list[int]) -> torch.Tensor:
    return torch.arange(len(ids))


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = MODELS[name]()
    ours = saved(reference, tmp_path)
    logits = ours.model.forward(torch.tensor(IDS), positions(IDS), None)
    torch.testing.assert_close(
        logits, reference_logits(reference, IDS), atol=TOLERANCE, rtol=TOLERANCE
    )


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    reference = llama()
    whole = saved(reference, tmp_path / "whole")
    shards = saved(reference, tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    both = [m.model.forward(torch.tensor(IDS), positions(IDS), None) for m in (whole, shards)]
    assert torch.equal(*both)


def test_only_the_rows_asked_for_get_logits(tmp_path: Path) -> None:
    model = saved(qwen3(), tmp_path).model
    ids, rows = torch.tensor(IDS), torch.tensor([12, 3])
    every = model.forward(ids, positions(IDS), None)
    some = model.forward(ids, positions(IDS), None, logits_indices=rows)
    torch.testing.assert_close(some, every[rows])


def test_bf16_weights_are_the_rounded_ones(tmp_path: Path) -> None:
    reference = llama()
    reference.save_pretrained(tmp_path)
    ours = load_model(tmp_path, device="cpu", dtype="bfloat16", progress=False)
    assert {weight.dtype for weight in ours.model.parameters()} == {torch.bfloat16}
    assert ours.model.rotary.freqs_cis.dtype == torch.float32
    logits = ours.model.forward(torch.tensor(IDS), positions(IDS), None)
    assert logits.dtype == torch.bfloat16
    exact = reference_logits(reference, IDS)
    assert (logits.float() - exact).norm() < 0.03 * exact.norm()


def pool_of(loaded: LoadedModel, **options: Any) -> PagePool:
    config = loaded.config
    return PagePool(
        config.n_layers,
        config.n_kv_heads,
        config.head_dim,
        max_batch_size=4,
        max_seq_len=config.max_position_embeddings,
        device="cpu",
        dtype=loaded.dtype,
        n_heads=config.n_heads,
        **options,
    )


def greedy(model: CausalLM, pool: PagePool, prompts: list[list[int]], n: int) -> list[list[int]]:
    """n greedy ids for each prompt: one mixed prefill, then decode steps of the whole batch."""
    rows = [pool.admit(prompt) for prompt in prompts]
    requests = [row.req_idx for row in rows]
    starts = [row.n_cached for row in rows]
    lengths = [len(prompt) for prompt in prompts]
    out: list[list[int]] = [[] for _ in prompts]
    for step in range(n):
        q_lens = [length - start for length, start in zip(lengths, starts, strict=True)]
        batch = pool.plan_step(requests, starts, q_lens)
        fwd = "decode" if batch.is_decode else "prefill"
        logits = model.forward(
            batch.input_ids, batch.position_ids, batch.kv_cache, fwd, batch.logits_indices
        )
        chosen = logits.argmax(-1).tolist()
        for ids, token_id in zip(out, chosen, strict=True):
            ids.append(token_id)
        starts, lengths = lengths, [length + 1 for length in lengths]
        if step + 1 < n:
            pool.append_batch(requests, chosen)
            assert pool.extend_batch(requests, lengths) == len(requests)
    for request in requests:
        pool.release(request)
    return out


@pytest.mark.parametrize(
    "name", ["llama_tied", "llama_llama3", "qwen2", "qwen3", "qwen3_moe", "gemma2"]
)
@pytest.mark.parametrize("paged", [False, True])
def test_stored_references_are_met_with_a_cache(name: str, paged: bool, goldens: Path) -> None:
    folder = goldens / "tiny" / name
    loaded = load_model(folder, device="cpu", dtype="float32", progress=False)
    records = [json.loads(line) for line in (folder / "golden.jsonl").read_text().splitlines()]
    assert len(records) == 4
    pool = pool_of(loaded, page_size=4, n_tokens=512) if paged else pool_of(loaded)
    together = greedy(loaded.model, pool, [record["prompt_ids"] for record in records], 24)
    assert together == [record["gen_ids"] for record in records]
    for record in records:
        assert greedy(loaded.model, pool, [record["prompt_ids"]], 24) == [record["gen_ids"]]


@pytest.mark.parametrize(
    "name", ["llama_tied", "llama_llama3", "qwen2", "qwen3", "qwen3_moe", "gemma2"]
)
def test_stored_references_are_met_position_by_position(name: str, goldens: Path) -> None:
    folder = goldens / "tiny" / name
    loaded = load_model(folder, device="cpu", dtype="float32", progress=False)
    for line in (folder / "golden.jsonl").read_text().splitlines():
        record = json.loads(line)
        ids = record["prompt_ids"] + record["gen_ids"]
        logits = loaded.model.forward(torch.tensor(ids), positions(ids), None)
        last = logits[len(record["prompt_ids"]) - 1]
        expected = torch.tensor(record["last_prompt_logits"])
        torch.testing.assert_close(last, expected, atol=1e-4, rtol=0)
        for entry in record["summary"]:
            row = logits[entry["pos"]]
            assert int(row.argmax()) == entry["argmax"]
            assert abs(float(row.logsumexp(-1)) - entry["lse"]) < 1e-4


@pytest.mark.model
def test_default_model_follows_every_reference_text(
    default_model: LoadedModel, goldens: Path
) -> None:
    model = default_model.model
    for line in (goldens / "smollm2.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        ids = record["prompt_ids"] + record["gen_ids"]
        rows = torch.arange(len(record["prompt_ids"]) - 1, len(ids) - 1)
        logits = model.forward(torch.tensor(ids), positions(ids), None, logits_indices=rows)
        assert logits.argmax(-1).tolist() == record["gen_ids"], record["id"]
        logprobs = logits.log_softmax(-1).gather(-1, torch.tensor(record["top5_ids"]))
        torch.testing.assert_close(
            logprobs, torch.tensor(record["top5_logprobs"]), atol=1e-3, rtol=0
        )


@pytest.mark.model
def test_default_model_generates_with_a_cache_what_the_reference_did(
    default_model: LoadedModel, goldens: Path
) -> None:
    lines = (goldens / "smollm2.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    short = [record for record in records if len(record["prompt_ids"]) < 60][:4]
    pool = pool_of(default_model, page_size=16, n_tokens=1024)
    texts = greedy(default_model.model, pool, [record["prompt_ids"] for record in short], 24)
    assert texts == [record["gen_ids"][:24] for record in short]


@pytest.mark.model
def test_default_model_ends_on_its_three_ends(default_model: LoadedModel) -> None:
    assert set(default_model.end_ids) == {0, 2, 4}
    assert default_model.config.max_position_embeddings == 8192
    assert default_model.summary["n_parameters"] == 134_515_008
