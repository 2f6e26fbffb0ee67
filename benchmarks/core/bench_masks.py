"""Times structured output: compiling grammars, and the masks of one step for many rows.

Uses the default model's tokenizer; no model runs. The texts that the rows follow are drawn at
random from their masks. --write puts results into results/structured_output.{json,md}.
PYTHONPATH=python python -m benchmarks.core.bench_masks --write
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from benchmarks.results_file import write_results

from astrai.models.default_model import fetch_default_model
from astrai.models.gguf_file import GGUFFile
from astrai.sampling.grammar_masks import apply_masks
from astrai.structured import Grammar, GrammarCompiler, MaskTable
from astrai.text.gguf_tokenizer import tokenizer_from_gguf

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["employee", "guest", "contractor"]},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "kind", "address", "tags"],
    "additionalProperties": False,
}
WIDE = {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(200)}}
GRAMMARS = {
    "json_object": Grammar.json_object(),
    "schema of 7 properties": Grammar.json_schema(PERSON),
    "schema of 200 properties": Grammar.json_schema(WIDE),
    "regex of a date": Grammar.regex(r"\d{4}-\d{2}-\d{2}"),
    "lark sums": Grammar.lark('start: sum\nsum: NUM ("+" NUM)*\nNUM: /[0-9]{1,4}/'),
}
N_STEPS = 64


def milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def allowed(mask: np.ndarray, draw: random.Random) -> int:
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return int(draw.choice(ids))


def steps(compiler: GrammarCompiler, grammar: Grammar, n_rows: int, vocab_size: int) -> list[float]:
    """Milliseconds of each step's `advance`: the tokens taken in, the next masks filled."""
    compiled = compiler.compile(grammar)
    table, draw = MaskTable(vocab_size), random.Random(1)
    for slot in range(n_rows):
        table.add(slot, compiled, [0])
    times = []
    for _ in range(N_STEPS):
        drawn = [allowed(mask, draw) for mask in table.masks(range(n_rows))]
        result = []
        times.append(
            milliseconds(lambda d=drawn, r=result: r.append(table.advance(range(n_rows), d)))
        )
        for slot in {
            *result[0].completed,
            *result[0].errors,
            *np.flatnonzero(np.array(drawn) == 0),
        }:
            table.add(int(slot), compiled, [0])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/structured_output.*")
    options = parser.parse_args()
    tokenizer = tokenizer_from_gguf(GGUFFile(fetch_default_model(progress=False)).metadata)
    assert tokenizer is not None
    vocab_size = tokenizer.vocab_size
    compiler = GrammarCompiler(tokenizer, vocab_size)
    first_ms = milliseconds(lambda: compiler.compile(Grammar.regex("first")))
    rows: list[dict[str, object]] = []
    for name, grammar in GRAMMARS.items():
        compile_ms = milliseconds(lambda g=grammar: compiler.compile(g))
        again_us = milliseconds(lambda g=grammar: compiler.compile(g)) * 1e3
        row: dict[str, object] = {"grammar": name, "compile ms": round(compile_ms, 1)}
        row["found again us"] = round(again_us, 1)
        for n_rows in (1, 16, 64):
            times = steps(compiler, grammar, n_rows, vocab_size)
            row[f"{n_rows} rows: median ms"] = round(statistics.median(times), 2)
            row[f"{n_rows} rows: p95 ms"] = round(sorted(times)[int(0.95 * len(times))], 2)
        rows.append(row)
    logits = torch.randn(64, vocab_size)
    masks = np.full((64, (vocab_size + 31) // 32), -1, np.int32)
    apply_ms = [milliseconds(lambda: apply_masks(logits, range(64), masks)) for _ in range(20)]
    compiler.close()
    write_results(
        "structured_output",
        "Structured output: compiling a grammar, and the masks of one step",
        f"Vocabulary of {vocab_size} (SmolLM2). A step takes in the last token of each row and "
        f"fills its next mask; {N_STEPS} steps of random allowed tokens. The first grammar of a "
        f"process loads llguidance, the vocabulary and the probe: {first_ms:.0f} ms. Applying 64 "
        f"masks to float32 logits on the CPU: {statistics.median(apply_ms):.2f} ms (median of 20).",
        rows,
        Path(__file__).parents[1] / "results" if options.write else None,
    )


if __name__ == "__main__":
    main()
