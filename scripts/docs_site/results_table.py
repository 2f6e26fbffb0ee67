"""The list of committed measurements on the performance page."""

from __future__ import annotations

from markup import table
from repository_links import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def page() -> str:
    """Every result file with its title, in the order of their names."""
    rows = []
    for file in sorted(RESULTS.glob("*.md")):
        title = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        rows.append([f"[{file.stem}](results/{file.name})", title])
    return table(("file", "what"), rows)


def excerpt(name: str, section: str = "") -> str:
    """The first table of a result file, or the one after a heading, with a link to the whole."""
    lines = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {section}") if section else 0
    first = next(i for i in range(start, len(lines)) if lines[i].startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return "\n".join(rows) + "\n"
