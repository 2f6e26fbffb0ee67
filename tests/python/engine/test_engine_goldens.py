"""The engine against reference ids: one answer, whatever the batch, cache, chunks and pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_model import Collector

from astrai.engine import GenerationRequest, InferenceEngine
from astrai.models import LoadedModel, load_model
from astrai.sampling import SamplingParams

Record = dict[str, Any]
TINY_MODELS = ["llama_tied", "llama_llama3", "qwen2", "qwen3", "qwen3_moe", "gemma2"]

# kv_tokens "tight" leaves room for little more than the longest record.
MODES: dict[str, dict[str, Any]] = {
    "contiguous_alone": {"max_batch_size": 1},
    "contiguous_chunks_64": {"max_batch_size": 8, "prefill_chunk": 64},
    "paged_chunks_7": {"kv_mode": "paged", "max_batch_size": 16, "prefill_chunk": 7},
    "paged_chunks_64": {"kv_mode": "paged", "max_batch_size": 16, "prefill_chunk": 64},
    "paged_unlimited": {"kv_mode": "paged", "max_batch_size": 16, "prefill_chunk": None},
    "page_size_1": {"kv_mode": "paged", "max_batch_size": 16, "page_size": 1},
    "tight": {"kv_mode": "paged", "max_batch_size": 8, "page_size": 4, "kv_tokens": "tight"},
}


def read_records(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_engine(
    loaded: LoadedModel, records: list[Record], mode: dict[str, Any]
) -> InferenceEngine:
    longest = max(len(r["prompt_ids"]) + len(r["gen_ids"]) for r in records)
    options: dict[str, Any] = {"max_seq_len": longest, **mode}
    if options.get("kv_tokens") == "tight":
        page_size = options["page_size"]
        options["kv_tokens"] = -(-longest // page_size) * page_size
    return InferenceEngine(loaded.model, loaded.tokenizer, end_ids=loaded.end_ids, **options)


def generate_all(engine: InferenceEngine, records: list[Record]) -> list[list[int]]:
    """Greedy ids of all records, submitted at once."""
    sink = Collector()
    request_ids = []
    for record in records:
        params = SamplingParams(temperature=0, max_tokens=len(record["gen_ids"]), ignore_eos=True)
        request = GenerationRequest(record["prompt_ids"], params, every_token=True)
        request_ids.append(engine.client.submit(request, sink))
    sink.wait(len(records), timeout=600)
    return [sink.token_ids(request_id) for request_id in request_ids]


def check(records: list[Record], generated: list[list[int]]) -> None:
    """A token may differ only where the reference's own best two are within 1e-4; what follows
    such a place is another text."""
    for record, token_ids in zip(records, generated, strict=True):
        assert len(token_ids) == len(record["gen_ids"])
        for i, (got, wanted) in enumerate(zip(token_ids, record["gen_ids"], strict=True)):
            if got != wanted:
                assert record["margin"][i] < 1e-4, f"{record.get('id')}: token {i} differs"
                break


@pytest.fixture(scope="module", params=TINY_MODELS)
def tiny(request: pytest.FixtureRequest, goldens: Path) -> tuple[LoadedModel, list[Record]]:
    folder = goldens / "tiny" / request.param
    loaded = load_model(folder, device="cpu", dtype="float32", progress=False)
    return loaded, read_records(folder / "golden.jsonl")


@pytest.mark.parametrize("mode", MODES)
def test_tiny_models_give_the_reference_ids_cold_and_warm(
    tiny: tuple[LoadedModel, list[Record]], mode: str
) -> None:
    loaded, records = tiny
    with make_engine(loaded, records, MODES[mode]) as engine:
        check(records, generate_all(engine, records))
        check(records, generate_all(engine, records[::-1])[::-1])
        engine.cache.check_integrity()
        if mode.startswith("paged"):
            assert engine.get_stats()["prefix_hit_tokens"] > 0  # type: ignore[operator]


@pytest.mark.model
@pytest.mark.parametrize("mode", MODES)
def test_the_default_model_gives_the_reference_ids_cold_and_warm(
    default_model: LoadedModel, goldens: Path, mode: str
) -> None:
    records = read_records(goldens / "smollm2.jsonl")
    with make_engine(default_model, records, MODES[mode]) as engine:
        check(records, generate_all(engine, records))
        if mode.startswith("paged"):
            before = engine.get_stats()["prefix_hit_tokens"]
            check(records, generate_all(engine, records))
            assert engine.get_stats()["prefix_hit_tokens"] > before  # type: ignore[operator]
        if mode == "tight":
            assert engine.get_stats()["preemptions"] > 0  # type: ignore[operator]


@pytest.mark.model
def test_streamed_and_whole_texts_are_the_reference_text(
    default_model: LoadedModel, goldens: Path
) -> None:
    """A cut character at the end of 48 tokens is left out of the text."""
    records = [
        record
        for record in read_records(goldens / "smollm2.jsonl")
        if record["kind"] in ("chat", "unicode", "whitespace")
    ]
    prompts = [record["prompt_ids"] for record in records]
    options = {"temperature": 0.0, "max_tokens": 48}
    mode = {"kv_mode": "paged", "max_batch_size": 16}
    with make_engine(default_model, records, mode) as engine:
        texts = engine.generate(prompts, **options)
        streamed = [""] * len(prompts)
        for idx, piece in engine.generate(prompts, stream=True, **options):
            streamed[idx] += piece
    assert streamed == texts
    assert texts == [record["text"].rstrip("\ufffd") for record in records]
