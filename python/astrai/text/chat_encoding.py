"""`encode_chat`: a conversation to prompt ids, with control tokens from the template alone.

Rendering mixes the template's markers with the client's strings. Where a client's string spells a
special token, that spelling is swapped for a stand-in before rendering; then the special tokens in
the rendered text are the template's, and get a mark; then the stand-ins turn back into spellings
that the tokenizer reads as text. A conversation without such spellings, which is nearly every one,
is rendered and encoded directly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from astrai.text.chat_template import ChatTemplate
from astrai.text.tokenizer import SPECIAL_MARK, Tokenizer

__all__ = ["encode_chat"]

_OPEN, _CLOSE = "\U000f0002", "\U000f0003"


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **extra: Any,
) -> list[int]:
    """Prompt ids of a conversation, nothing added to what the template renders.

    extra: further variables for the template. Special tokens spelled inside messages, tools or
    extra stay text; those of the template are tokens.
    Raises TemplateError as ChatTemplate.render, ValueError for text that is not Unicode."""
    stand_ins = _StandIns(tokenizer.special_strings)
    if not any(stand_ins.needed_in(text) for text in _strings([messages, tools, extra])):
        text = template.render(messages, tools, add_generation_prompt, **extra)
        return tokenizer.encode(text)
    rendered = template.render(
        stand_ins.put(messages), stand_ins.put(tools), add_generation_prompt, **stand_ins.put(extra)
    )
    return tokenizer.encode_marked(stand_ins.restore(stand_ins.mark(rendered)))


class _StandIns:
    """Stand-ins for special spellings: private-use brackets around SPECIAL_MARK and a number."""

    def __init__(self, specials: tuple[str, ...]) -> None:
        """specials: spellings, longest first, so that one inside another does not win."""
        self._specials = specials
        self._spelling = re.compile("|".join(map(re.escape, specials)) or r"(?!)")
        self._stand_in = re.compile(f"{_OPEN}{SPECIAL_MARK}([0-9]*){_CLOSE}")
        self._number = {text: number for number, text in enumerate(specials)}
        self._beginnings = {text[:n] for text in specials for n in range(1, len(text))}
        self._longest = max(map(len, specials), default=0)

    def needed_in(self, text: str) -> bool:
        """Does the text spell a special token, or end in the beginning of one, which a string that
        the template puts behind it could complete?"""
        return any(special in text for special in self._specials) or self._ends_cut(text)

    def put(self, value: Any) -> Any:
        """A copy of messages or tools with every special spelling replaced."""
        if isinstance(value, str):
            swapped = self._spelling.sub(lambda m: self._spell(self._number[m.group()]), value)
            # An empty stand-in keeps a cut-off spelling from joining the string that follows.
            return swapped + self._spell("") if self._ends_cut(swapped) else swapped
        if isinstance(value, dict):
            return {self.put(key): self.put(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.put(item) for item in value]
        return value

    def mark(self, rendered: str) -> str:
        return self._spelling.sub(lambda m: SPECIAL_MARK + m.group(), rendered)

    def restore(self, marked: str) -> str:
        return self._stand_in.sub(
            lambda m: self._specials[int(m.group(1))] if m.group(1) else "", marked
        )

    def _ends_cut(self, text: str) -> bool:
        tail = text[-self._longest :]
        return any(tail[at:] in self._beginnings for at in range(len(tail)))

    @staticmethod
    def _spell(number: int | str) -> str:
        return f"{_OPEN}{SPECIAL_MARK}{number}{_CLOSE}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
