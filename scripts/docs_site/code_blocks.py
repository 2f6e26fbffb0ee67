"""Code blocks of documents that are run: those below a comment `<!-- run: HOW PACKAGE... -->`.

bash, python, node   as it stands, but for the address of the server, which serves a model; the
                     packages are those that it needs beside astrai
engine               Python without a server; the blocks of a page share their names
cpp                  compiled, linked with the C++ core and run
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ADDRESS = "http://127.0.0.1:8000"  # what documents call a server
HOWS = {"bash": "bash", "python": "python", "node": "javascript", "engine": "python", "cpp": "cpp"}

_BLOCK = re.compile(r"<!-- run: (\w+)(.*?) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- run:", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """One block. heading: of the part of the page that it is in; line: of the block's fence."""

    heading: str
    line: int
    how: str
    packages: tuple[str, ...]
    text: str


def marked_blocks(document: Path) -> list[CodeBlock]:
    """The blocks of a document that are run, in order. Raises ValueError on a mark without one."""
    text = document.read_text(encoding="utf-8")
    blocks = []
    for found in _BLOCK.finditer(text):
        how, packages, language, code = found.groups()
        line = text.count("\n", 0, found.start()) + 2
        if HOWS.get(how) != language:
            raise ValueError(f"{document}:{line}: a block of {language} is marked 'run: {how}'")
        heading = _HEADING.findall(text[: found.start()])[-1]
        blocks.append(CodeBlock(heading, line, how, tuple(packages.split()), code))
    if len(blocks) != len(_MARK.findall(text)):
        raise ValueError(f"{document}: a line '<!-- run: ... -->' has no code block below it")
    return blocks
