"""Declarations of a C++ header with the comments above them.

Reads the project's own headers, not C++ in general: comments are `//` lines above a declaration or
behind it, macros are not expanded, and templates are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TYPE = re.compile(
    r"(?:template\s*<[^{;]*>\s*)?(class|struct)\s+(?:alignas\([^)]*\)\s+)?(\w+)(?:\s+final)?(?:\s*:[^{]*)?$"
)
_ACCESS = re.compile(r"\s*(public|private|protected)\s*:(?!:)")
_NAMESPACE = re.compile(r"namespace\s+[\w:]*\s*$")


@dataclass(slots=True)
class Declaration:
    """One declaration: its comment without the slashes, and its text without a function's body.

    kind: "struct", "class" or "". members: of a class, the public ones. joins: it has no comment
    and stands right below the one before, whose comment may speak of both.
    """

    comment: list[str]
    text: str
    kind: str = ""
    name: str = ""
    members: list[Declaration] = field(default_factory=list)
    joins: bool = False

    @property
    def is_plain_struct(self) -> bool:
        """A struct of fields alone."""
        texts = (re.sub(r"//.*", "", member.text) for member in self.members)
        return self.kind == "struct" and not any(re.search(r"\w\(", text) for text in texts)


def file_comment(source: str) -> list[str]:
    """The comment that a header opens with."""
    lines = []
    for line in source.splitlines():
        if not line.startswith("//"):
            break
        lines.append(_uncommented(line))
    return lines


def declarations(source: str) -> list[Declaration]:
    """What a header declares in its namespace."""
    body = source.partition("#pragma once")[2]
    return list(_scope(body))


def _scope(text: str) -> Iterator[Declaration]:
    """The declarations of one scope; of a class, the public ones."""
    position, is_public, follows = 0, True, False
    comment: list[str] = []
    while position < len(text):
        line_end = _line_end(text, position)
        line = text[position:line_end]
        if access := _ACCESS.match(line):
            is_public, follows, comment = access[1] == "public", False, []
            position += access.end()
        elif line.lstrip().startswith("//"):
            comment.append(_uncommented(line))
            position = line_end + 1
        elif not line.strip() or line.startswith("#"):
            follows = follows and position > 0 and text[position - 1] != "\n"
            if comment and not comment[-1].startswith("----"):  # a rule belongs to what follows
                comment = []
            position = line_end + 1
        else:
            end, brace = _statement(text, position)
            statement = _dedented(text[position:end])
            head = _dedented(text[position : brace if brace >= 0 else end]).rstrip()
            if brace >= 0 and _NAMESPACE.search(head):
                yield from _scope(_inside(statement))
            elif is_public:
                yield _declaration(comment, statement, head, brace >= 0, follows and not comment)
            position, comment, follows = end, [], True


def _declaration(
    comment: list[str], statement: str, head: str, has_body: bool, joins: bool
) -> Declaration:
    kind = _TYPE.match(head) if has_body else None
    if kind is None:
        return Declaration(comment, _signature(statement, head, has_body), joins=joins)
    inside = _inside(statement)
    if kind[1] == "class":
        inside = "private:\n" + inside
    return Declaration(comment, statement, kind[1], kind[2], list(_scope(inside)))


def _signature(statement: str, head: str, has_body: bool) -> str:
    """The declaration without the body of a function; variables, enums and aliases as they are."""
    if not has_body or "(" not in head or head.endswith("=") or head.startswith("enum"):
        return statement
    without_initializers = re.sub(r"\)\s*:(?!:).*$", ")", head, flags=re.DOTALL)
    behind = re.search(r"[;}]\s*(//.*)$", statement.splitlines()[-1])
    return without_initializers + ";" + ("  " + behind[1] if behind else "")


def _statement(text: str, start: int) -> tuple[int, int]:
    """Where it ends, with a comment behind it, and where its body's brace is, -1 without one."""
    depth, brace, position = 0, -1, start
    while position < len(text):
        character = text[position]
        if text.startswith("//", position):
            position = _line_end(text, position)
            continue
        if character in "\"'":
            position = _after_literal(text, position)
            continue
        if character in "([{":
            if character == "{" and depth == 0 and brace < 0:
                brace = position
            depth += 1
        elif character in ")]}":
            depth -= 1
        position += 1
        is_body = character == "}" and not re.match(r"\s*[;{,]", text[position:])
        is_end = depth == 0 and (character == ";" or is_body)
        if is_end:
            behind = re.match(r"[ \t]*//[^\n]*", text[position:])
            return position + (behind.end() if behind else 0), brace
    return len(text), brace


def _after_literal(text: str, position: int) -> int:
    quote = text[position]
    position += 1
    while position < len(text) and text[position] != quote:
        position += 2 if text[position] == "\\" else 1
    return position + 1


def _inside(statement: str) -> str:
    return statement[statement.index("{") + 1 : statement.rindex("}")]


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _uncommented(line: str) -> str:
    text = line.strip()[2:]
    return text.removeprefix(" ").rstrip()


def _dedented(statement: str) -> str:
    """The statement moved to the margin, its lines together."""
    lines = statement.rstrip().splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)
