"""What an answer has to look like: a frozen description, not yet compiled.

Free of llguidance and torch, hashable, and therefore a cache key. Whether a text is acceptable is
known only after `GrammarCompiler.compile`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Grammar", "GrammarError", "GrammarKind"]

GrammarKind = Literal["json_schema", "json_object", "regex", "lark", "choice"]


class GrammarError(ValueError):
    """A grammar that cannot be compiled; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language an answer must belong to, whole.

    text: the source. json_schema: JSON text of a schema; json_object: "", any JSON object; regex:
    a regular expression that the whole answer matches; lark: a grammar in Lark's notation, or in
    GBNF where it defines with ::=; choice: JSON text of a list of strings.
    """

    kind: GrammarKind
    text: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """JSON that fits a schema; properties come in the order given here."""
        return cls("json_schema", _json_text("json_schema", schema))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls("json_object", "")

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        return cls("regex", pattern)

    @classmethod
    def lark(cls, source: str) -> Grammar:
        return cls("lark", source)

    @classmethod
    def choice(cls, options: Sequence[str]) -> Grammar:
        """One of these texts."""
        return cls("choice", _json_text("choice", list(options)))


def _json_text(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"{name} cannot be written as JSON: {error}") from None
