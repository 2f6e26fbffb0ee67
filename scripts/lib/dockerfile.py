"""Dockerfiles as far as ours go: instructions, build arguments, stages.

For `scripts/run_dockerfile`, which carries the steps out, and for the tests, which look at them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_OPTION = re.compile(r"--([a-z-]+)=(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: its word in capitals, its --options, and the rest of its line."""

    word: str
    options: tuple[tuple[str, str], ...]
    rest: str
    line: int

    def option(self, name: str) -> str | None:
        return dict(self.options).get(name)

    def items(self) -> list[str]:
        """The words of a JSON list, or of a plain line."""
        found: list[str] = json.loads(self.rest) if self.rest[0] == "[" else self.rest.split()
        return found


@dataclass(slots=True)
class Stage:
    """What one FROM begins. base: an image, or the name of an earlier stage."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def last(self, word: str) -> Step | None:
        return next((step for step in reversed(self.steps) if step.word == word), None)


def read_stages(path: Path, build_args: Mapping[str, str]) -> list[Stage]:
    """The stages of a Dockerfile. build_args replace the defaults of the ARGs before FROM.

    Raises ValueError for a build argument that no ARG takes.
    """
    steps = list(_instructions(path.read_text(encoding="utf-8")))
    declared = {step.rest.partition("=")[0] for step in steps if step.word == "ARG"}
    if unknown := sorted(set(build_args) - declared):
        raise ValueError(f"{path}: no ARG takes {unknown[0]}; there are {sorted(declared)}")
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for step in steps:
        if step.word == "FROM":
            base, _, name = substitute(step.rest, arguments).partition(" AS ")
            stages.append(Stage(base.strip(), name.strip()))
        elif stages:
            stages[-1].steps.append(step)
        else:  # ARG, the only word that may stand before FROM
            name, _, default = step.rest.partition("=")
            arguments[name] = build_args.get(name, default)
    return stages


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """text with ${NAME} and $NAME replaced; unknown names by nothing."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


def _instructions(text: str) -> Iterator[Step]:
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if pending else number
        if line.rstrip().endswith("\\"):
            pending += line.rstrip()[:-1] + " "
            continue
        word, _, rest = (pending + line).strip().partition(" ")
        pending = ""
        options: list[tuple[str, str]] = []
        rest = rest.strip()
        while match := _OPTION.match(rest):
            options.append((match[1], match[2]))
            rest = rest[match.end() :]
        yield Step(word.upper(), tuple(options), rest, first)
