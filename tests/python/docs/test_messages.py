"""Troubleshooting by message: each message that the page lists is one that the code can give."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guide" / "troubleshooting.md"
FOLDERS = ("python/astrai", "cpp/include", "cpp/src", "cpp/bindings", "cuda", "cmake", "docker")
KINDS = {".py", ".h", ".cpp", ".cu", ".cuh", ".cmake", ".in", ".sh", ""}
# Words of other programs, which reach the user through ours.
FOREIGN = {
    "Address already in use",
    "Input should be",
    "Requires-Python >=",
    "externally-managed-environment",
    "requires a different Python",
}
# What the page shows where the code puts a message together.
VALUES = (
    r"model\.safetensors(?:\.index\.json)?|cuda, torch_native, flash|\bcuda\b"
    r"|a whole number"
)


def rows() -> list[list[str]]:
    """The messages of each row of the page's tables."""
    text = PAGE.read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?) \| .* \|$", text, re.MULTILINE)
    return [found for cell in cells if (found := re.findall(r"`([^`]{8,})`", cell))]


@cache
def sources() -> str:
    """Every source as one text, in which adjacent literals are joined and blanks are single."""
    texts = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in KINDS:
                texts.append(path.read_text(encoding="utf-8", errors="replace"))
    for path in (ROOT / "scripts").iterdir():
        if path.is_file():
            texts.append(path.read_text(encoding="utf-8"))
    joined = re.sub(r"[\"']\s*\n?\s*(?:std::string\()?[rf]?[\"']", "", "\n".join(texts))
    return re.sub(r"\s+", " ", joined.replace('\\"', '"'))


def fixed_parts(message: str) -> list[str]:
    """What of a message is the same each time: what stands between capitals, quotes and dots."""
    changing = rf"{VALUES}|\b[A-Z][A-Z_:]*\b|'[^']*'|\.\.\.|\{{|\}}|\b\d[\d.]*\b|--\w+"
    parts = re.split(changing, message)
    stripped = (part.strip(" ,;:.?()") for part in parts)
    return [part for part in stripped if len(part) >= 6]


def is_said(part: str) -> bool:
    """Whether the code has it, as one text or put together from two."""
    if part in sources() or part in FOREIGN:
        return True
    cuts = (found.start() for found in re.finditer(r"\b", part))
    halves = ((part[:cut].strip(), part[cut:].strip()) for cut in cuts)
    return any(
        min(len(left), len(right)) >= 6 and left in sources() and right in sources()
        for left, right in halves
    )


@pytest.mark.parametrize("messages", rows(), ids=lambda messages: messages[0][:50])
def test_each_message_occurs_in_the_code(messages: list[str]) -> None:
    for message in messages:
        for part in fixed_parts(message):
            assert is_said(part), f"{message!r}: nothing in the code says {part!r}"


def test_the_page_has_messages_that_can_be_looked_for() -> None:
    parts = [part for messages in rows() for message in messages for part in fixed_parts(message)]
    assert len(rows()) >= 50 and len(parts) >= 60


def test_a_message_that_nobody_gives_is_found() -> None:
    assert not is_said("the moon is made of cheese")
    assert not is_said("no nvcc on the moon")
