"""Mask tables: what a mask allows, one row or many, and rows that take too long."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tokenizers
import torch
from test_schema_answers import TOKENIZER
from tokenizers import decoders, models

from astrai.sampling.grammar_masks import apply_masks
from astrai.structured import Grammar, GrammarCompiler, MaskTable, masks
from astrai.text import Tokenizer

PATTERN = r"[a-d]{2}(é|null|\n)+x?"


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, 300)


def allowed(table: MaskTable, slot: int) -> list[int]:
    bits = np.unpackbits(table.masks([slot])[0].view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def test_a_mask_allows_each_token_that_keeps_an_answer_possible(compiler: GrammarCompiler) -> None:
    table = MaskTable(300)
    table.add(5, compiler.compile(Grammar.regex("(a|null|\n  b)y*")), [7, 299])
    texts = {TOKENIZER.token_bytes()[i] for i in allowed(table, 5)}
    assert texts == {b"a", b"n", b"null", b"\n", b"\n  "}
    [a] = [i for i, text in enumerate(TOKENIZER.token_bytes()) if text == b"a"]
    table.advance([5], [a])
    assert {7, 299} < set(allowed(table, 5))
    assert {TOKENIZER.token_bytes()[i] for i in allowed(table, 5)} >= {b"y"}
    assert not table.advance([5], [299]).errors


def test_two_ids_of_one_text_are_both_allowed() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "<0x61>": 1, "b": 2}, merges=[]))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(backend, vocab_size=64)
    compiler = GrammarCompiler(tokenizer, 64)
    table = MaskTable(64)
    table.add(0, compiler.compile(Grammar.choice(["aab", "ba"])), [])
    assert allowed(table, 0) == [0, 1, 2]
    compiler.close()


@pytest.mark.parametrize("n_rows", [1, 7, 8, 33])
def test_many_rows_are_filled_as_one_by_one(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, n_rows: int
) -> None:
    def run(n_cpus: int) -> list[list[int]]:
        monkeypatch.setattr(masks.os, "cpu_count", lambda: n_cpus)
        table, draw, told = MaskTable(300), random.Random(n_rows), []
        for slot in range(n_rows):
            table.add(slot, compiler.compile(Grammar.regex(PATTERN)), [256])
        for _ in range(12):
            choices = [allowed(table, slot) for slot in range(n_rows)]
            told += choices
            drawn = [draw.choice(ids) for ids in choices]
            result = table.advance(range(n_rows), drawn)
            ended = [s for s in range(n_rows) if s in result.completed or drawn[s] == 256]
            for slot in ended:
                table.add(slot, compiler.compile(Grammar.regex(PATTERN)), [256])
        return told

    assert run(1) == run(64)


def test_a_row_that_takes_too_long_fails_alone_and_a_batch_finds_it(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(masks, "_SLOW_STEP_S", -1.0)
    table = MaskTable(300)
    for slot in range(9):
        table.add(slot, compiler.compile(Grammar.regex("a*")), [])
    a = allowed(table, 0)[0]
    assert not table.advance(range(9), [a] * 9).errors
    clock = iter([0.0, 0.0] * 4 + [0.0, 5.0] + [0.0, 0.0] * 4)
    monkeypatch.setattr(masks.time, "thread_time", lambda: next(clock))
    assert list(table.advance(range(9), [a] * 9).errors) == [4]


def test_applied_masks_leave_allowed_logits_and_other_rows_to_the_bit() -> None:
    logits = torch.randn(4, 70)
    masked = logits.clone()
    words = np.array([[-1, 5, 1 << 5], [0, -(2**31), -1]], np.int32)
    apply_masks(masked, [3, 1], words)
    keep = {3: {*range(32), 32, 34, 69}, 1: {63, *range(64, 70)}}
    for row in range(4):
        for token_id in range(70):
            is_kept = token_id in keep.get(row, range(70))
            expected = logits[row, token_id] if is_kept else torch.tensor(float("-inf"))
            assert masked[row, token_id] == expected
