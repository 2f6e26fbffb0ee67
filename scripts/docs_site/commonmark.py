"""What CommonMark, by which the documents are written, reads and Python-Markdown does not.

Lists and tables right below a paragraph; lists in lists, indented by less than four blanks.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r" *```")
_ITEM = re.compile(r"( *)(?:[-*]|\d+\.) ")


def portable(markdown: str) -> str:
    """The text with blank lines and indents that both read alike."""
    lines: list[str] = []
    is_code = is_list = False
    for line in markdown.splitlines():
        item = None if is_code else _ITEM.match(line)
        above = lines[-1] if lines else ""
        if _FENCE.match(line):
            is_code = not is_code
        elif item and item[1] and is_list:
            line = " " * (4 if len(item[1]) < 4 else 8) + line.lstrip()
        elif item and not item[1]:
            if above and not is_list:
                lines.append("")
            is_list = True
        elif not is_code and line.startswith("|") and above and not above.startswith("|"):
            lines.append("")
        elif not is_code and line and not line.startswith(" ") and not above:
            is_list = False  # a paragraph at the margin ends the list
        lines.append(line)
    return "\n".join(lines) + "\n"
