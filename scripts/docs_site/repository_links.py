"""Where the repository's files are in the site, and links between them.

Documents are written to be read in the repository: their links are relative paths there. The site
shows docs/ as it lies, some documents from outside it under names of their own, and every other
file that a document links to as a page below source/.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from posixpath import relpath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = Path("docs")

_NAMED = {"README.md": "index.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
_NAMED["CONTRIBUTING.md"] = "contributing.md"
_FOLDERS = {"benchmarks/results": "performance.md"}

# Fenced blocks and code in a line hold no links; a link is [text](target), also of an image.
_CODE_OR_LINK = re.compile(
    r"^(?P<fence> *`{3,}).*?^(?P=fence) *$|`[^`\n]+`"
    r"|(?P<open>\]\()(?P<target>[^)\s]+)(?P<close>\))",
    re.MULTILINE | re.DOTALL,
)


class SiteMap:
    """Pages of the site by the repository's files. rescan() reads the tree again."""

    def __init__(self) -> None:
        self.outside_pages: dict[str, Path] = {}  # page -> document outside docs/
        self.file_pages: dict[str, Path] = {}  # page -> another file that a document links to

    def rescan(self) -> None:
        self.outside_pages = {page: Path(name) for name, page in _NAMED.items()}
        for document in sorted(ROOT.glob("*.md")):
            if document.name not in _NAMED:
                self.outside_pages[f"project/{document.stem.lower()}.md"] = Path(document.name)
        for document in sorted((ROOT / "benchmarks/results").glob("*.md")):
            self.outside_pages[f"results/{document.name}"] = document.relative_to(ROOT)
        self.file_pages = {}
        for document in self._documents():
            text = (ROOT / document).read_text(encoding="utf-8")
            for target in links(text):
                linked = self._file(document, target)
                if linked and linked.suffix != ".png" and self._page(linked) is None:
                    self.file_pages[f"source/{linked}.md"] = linked

    def pages_in(self, folder: str) -> list[str]:
        """The pages directly in a folder of the site ("guide/"), by name."""
        inside = (folder + path.name for path in (ROOT / DOCS / folder).glob("*.md"))
        outside = (page for page in self.outside_pages if page.startswith(folder))
        return sorted({*inside, *outside})

    def link(self, page: str, target: str) -> str:
        """A link of a page, written for the repository, as it has to be in the site."""
        document = self.outside_pages.get(page, DOCS / page)
        linked = self._file(document, target)
        if linked is None:
            return target
        moved = self._page(linked)
        if moved is None:
            return target
        _, hash_sign, anchor = target.partition("#")
        return relpath(moved, PurePosixPath(page).parent) + hash_sign + anchor

    def map_links(self, markdown: str, moved: Callable[[str], str]) -> str:
        """The text with each link's target replaced by moved(target)."""

        def replaced(match: re.Match[str]) -> str:
            if match["target"] is None:
                return match[0]
            return match["open"] + moved(match["target"]) + match["close"]

        return _CODE_OR_LINK.sub(replaced, markdown)

    def _documents(self) -> list[Path]:
        inside = (path.relative_to(ROOT) for path in (ROOT / DOCS).rglob("*.md"))
        return sorted({*inside, *self.outside_pages.values()})

    def _file(self, document: Path, target: str) -> Path | None:
        """The file or folder that a relative link of a document names, if it is in the tree."""
        path = unquote(target.partition("#")[0])
        if not path or urlsplit(target).scheme:
            return None
        found = (ROOT / document.parent / path).resolve()
        if not found.exists() or not found.is_relative_to(ROOT):
            return None
        return found.relative_to(ROOT)

    def _page(self, file: Path) -> str | None:
        """The page or picture of the site that shows a file of the repository."""
        if file.is_relative_to(DOCS):
            return file.relative_to(DOCS).as_posix()
        if str(file) in _FOLDERS:
            return _FOLDERS[str(file)]
        for pages in (self.outside_pages, self.file_pages):
            for page, source in pages.items():
                if source == file:
                    return page
        return None


def links(markdown: str) -> list[str]:
    """The targets of all links of a text, those in code left out."""
    return [m["target"] for m in _CODE_OR_LINK.finditer(markdown) if m["target"]]


def bad_address(target: str) -> str | None:
    """What is wrong with the form of an address outside the site; nothing is fetched."""
    parts = urlsplit(target)
    if not parts.scheme:
        return None
    if parts.scheme not in ("http", "https", "mailto"):
        return "the scheme is not https"
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "no address"
    host = parts.hostname or ""
    is_loopback = host in ("127.0.0.1", "localhost")
    if not is_loopback and not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", host):
        return "no host name"
    if not is_loopback and parts.scheme != "https":
        return "use https"
    return None
