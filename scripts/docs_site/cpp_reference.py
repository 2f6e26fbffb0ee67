"""The C++ reference: each public header with its contracts, from the headers' own comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from cpp_declarations import Declaration, declarations, file_comment
from markup import code, escaped
from repository_links import ROOT

HEADERS = ROOT / "cpp" / "include" / "astrai"

# Headers say of a part, or of themselves, that it may change with any version: no reference of it.
_INTERNAL = re.compile(r"^// ---- .*\n// From here on not an interface(?s:.*)\Z", re.MULTILINE)
_PART = "not an interface: it may change"

# What reads better as code: text in backticks, calls, std::, names with underscores, shapes.
_NAME = re.compile(
    r"(`[^`]+`|(?<![\w/.<])(?:std::)?[A-Za-z]\w*\(\)|\b(?:std|astrai)::\w+|\bk[A-Z]\w+"
    r"|\b[a-zA-Z]+(?:_[a-z0-9]+)+\b(?:\[[^\]]*\])?|\w*\[[^\]]{1,60}\])"
)
_PARAMETER = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): +(.*)")


def page() -> str:
    """Every header that is an interface, by name."""
    return "\n\n".join(_header(name, source) for name, source in interfaces().items())


def interfaces() -> dict[str, str]:
    """The public headers by name, as far as they are an interface."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(HEADERS.glob("*.h"))}
    return {
        name: _INTERNAL.sub("}  // namespace astrai\n", source)
        for name, source in sources.items()
        if _PART not in " ".join(file_comment(source))
    }


def _header(name: str, source: str) -> str:
    parts = [f"## `astrai/{name}` {{ #{name.removesuffix('.h')} }}", prose(file_comment(source))]
    parts += _entries(declarations(source))
    return "\n\n".join(part for part in parts if part)


def _entries(found: list[Declaration]) -> Iterator[str]:
    """Entries of a scope; declarations that stand together are one block."""
    together: list[Declaration] = []
    for declaration in found:
        if together and not declaration.joins:
            yield _plain(together)
            together = []
        if declaration.kind:
            yield _type(declaration)
        else:
            together.append(declaration)
    if together:
        yield _plain(together)


def _type(declaration: Declaration) -> str:
    rules, comment = _rules(declaration.comment)
    title = f"### {declaration.kind} `{declaration.name}` {{ #{declaration.name} }}"
    parts = [*rules, title, prose(comment)]
    if declaration.is_plain_struct:
        parts.append(_block(declaration.text))
    else:
        parts += _entries(declaration.members)
    return "\n\n".join(part for part in parts if part)


def _plain(together: list[Declaration]) -> str:
    """A block with what the comment says below it; several that stand together stay as they are."""
    rules, comment = _rules(together[0].comment)
    texts = [declaration.text for declaration in together]
    if len(texts) > 1:
        texts[:0] = [f"// {line}".rstrip() for line in comment]
        comment = []
    return "\n\n".join(part for part in (*rules, _block("\n".join(texts)), prose(comment)) if part)


def _rules(comment: list[str]) -> tuple[list[str], list[str]]:
    """Lines such as `---- sampling ----` as titles, and the other lines."""
    titles = [f"**{_sentence(line.strip('- '))}**" for line in comment if line.startswith("----")]
    return titles, [line for line in comment if not line.startswith("----")]


def _block(text: str) -> str:
    return f"```cpp\n{text}\n```"


def prose(comment: list[str]) -> str:
    """A comment as Markdown: paragraphs, `name: meaning` lines as a list, drawings as they are."""
    text = "\n\n".join(_rendered(group) for group in _groups(comment))
    return re.sub(r"(?<=\n)(- [^\n]*)\n\n(?=- )", r"\1\n", "\n" + text).strip()


def _groups(comment: list[str]) -> Iterator[list[str]]:
    """Runs of lines: of text, of a parameter with its continuation, or of a drawing."""
    group: list[str] = []
    for line in comment:
        if group and _starts(group, line):
            yield group
            group = []
        if line:
            group.append(line)
    if group:
        yield group


def _starts(group: list[str], line: str) -> bool:
    """Whether a line begins a new group after these."""
    if not line or _PARAMETER.match(line):
        return True
    is_indented = line.startswith("  ")
    if _PARAMETER.match(group[0]):
        return not is_indented and line[0].isupper() and group[-1].endswith(".")
    return is_indented != group[-1].startswith("  ")


def _rendered(group: list[str]) -> str:
    if parameter := _PARAMETER.match(group[0]):
        meaning = " ".join([parameter[2], *(line.strip() for line in group[1:])])
        return f"- `{parameter[1]}`: {_sentence(meaning)}"
    if group[0].startswith("  "):
        return "```text\n" + "\n".join(line[2:] for line in group) + "\n```"
    return _sentence(" ".join(line.strip() for line in group))


def _sentence(text: str) -> str:
    """Text with its names as code: those in backticks, with underscores, calls and types."""
    parts = _NAME.split(text)
    return "".join(
        code(part.strip("`")) if i % 2 else _linked(escaped(part)) for i, part in enumerate(parts)
    )


def _linked(text: str) -> str:
    """Names of the headers' types as links to them."""
    return re.sub(
        r"\b[A-Z]\w+\b", lambda m: f"[{m[0]}](#{m[0]})" if m[0] in _types() else m[0], text
    )


@cache
def _types() -> frozenset[str]:
    found = (d for source in interfaces().values() for d in declarations(source))
    return frozenset(d.name for d in found if d.kind)
