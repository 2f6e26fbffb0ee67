"""Structured output: answers that belong to a grammar, by masking tokens.

`Grammar` says what is wanted, `GrammarCompiler` turns it into a `CompiledGrammar`, and `MaskTable`
holds the masks of the requests that run. llguidance is loaded when the first grammar comes.
"""

from __future__ import annotations

from astrai.structured.compiler import (
    CompiledGrammar,
    GrammarBusyError,
    GrammarCompiler,
    GrammarLimits,
)
from astrai.structured.grammar import Grammar, GrammarError
from astrai.structured.masks import MaskTable
from astrai.structured.schema_subset import check_schema
from astrai.structured.sources import grammar_rule, schema_rule

__all__ = [
    "CompiledGrammar",
    "Grammar",
    "GrammarBusyError",
    "GrammarCompiler",
    "GrammarError",
    "GrammarLimits",
    "MaskTable",
    "check_schema",
    "grammar_rule",
    "schema_rule",
]
