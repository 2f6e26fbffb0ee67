"""What the masks of a JSON schema let through validates, by `jsonschema`, whoever draws.

A random walk over a vocabulary of single bytes and a few words takes the place of a model, so that
every corner of a mask is entered; `test_answers_of_the_default_model_validate` has a real one.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schema_strategies import SCHEMAS
from tokenizers import decoders, models, pre_tokenizers

from astrai.structured import Grammar, GrammarCompiler, GrammarError, GrammarLimits, MaskTable
from astrai.text import Tokenizer

WORDS = ['{"', '"}', '":', ", ", "  ", "\n  ", "null", "true", '",', "é", "},", "]}", "10"]
N_STEPS = 400


def make_tokenizer() -> Tokenizer:
    """256 bytes, WORDS and an end token."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for word in WORDS:
        vocab.setdefault(spell(word)[0][0], len(vocab))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, vocab_size=300)


TOKENIZER = make_tokenizer()
END_ID = TOKENIZER.token_id("<end>")
COMPILER = GrammarCompiler(TOKENIZER, 300, GrammarLimits(compile_s=20))


def walk(grammar: Grammar, seed: int) -> str | None:
    """An answer of random tokens, None when it is not whole after N_STEPS."""
    assert END_ID is not None
    table = MaskTable(300)
    table.add(0, COMPILER.compile(grammar), [END_ID])
    draw = random.Random(seed)
    token_ids: list[int] = []
    for _ in range(N_STEPS):
        mask = table.masks([0])[0]
        allowed = [i for i in range(300) if mask[i // 32] >> (i % 32) & 1]
        assert allowed, "a mask without tokens"
        if END_ID in allowed and (draw.random() < 0.5 or allowed == [END_ID]):
            return TOKENIZER.decode(token_ids)
        allowed = [i for i in allowed if i != END_ID]
        # Closing characters are preferred, or strings and numbers would hardly end.
        closing = [i for i in allowed if TOKENIZER.token_bytes()[i][:1] in (b'"', b"}", b"]")]
        token_ids.append(draw.choice(closing if closing and draw.random() < 0.4 else allowed))
        result = table.advance([0], token_ids[-1:])
        assert not result.errors, (result.errors, TOKENIZER.decode(token_ids))
        if result.completed:
            return TOKENIZER.decode(token_ids)
    return None


def check(schema: Any, text: str) -> None:
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert len(text) - len(text.lstrip()) == 0


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_every_whole_answer_validates(schema: Any, seed: int) -> None:
    try:
        texts = [walk(Grammar.json_schema(schema), seed + i) for i in range(3)]
    except GrammarError as error:
        assert "does not compile" in str(error) or "none at all" in str(error)
        return
    for text in texts:
        if text is not None:
            check(schema, text)
