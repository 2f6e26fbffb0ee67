"""The C++ package: which headers are public, and what the extension exports.

tests/install/run builds programs against an installation; this reads the source tree and `_C`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from astrai import _C

ROOT = Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "cpp" / "include" / "astrai").glob("*.h"))
GUIDE = ROOT / "docs" / "guide" / "cpp.md"
NOT_AN_INTERFACE = "not an interface: it may change with any version"


def opening(header: Path) -> str:
    """What a header says before its first directive, in one line."""
    text, _, _ = header.read_text(encoding="utf-8").partition("#pragma once")
    return " ".join(line.removeprefix("//").strip() for line in text.splitlines())


def test_every_header_is_in_the_guides_table_or_says_that_it_is_no_interface() -> None:
    table = {
        name
        for row in re.findall(r"^\| `astrai/.*$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
        for name in re.findall(r"`astrai/(\w+\.h)`", row)
    }
    parts = {header.name for header in HEADERS if NOT_AN_INTERFACE in opening(header)}
    assert not table & parts
    assert table | parts == {header.name for header in HEADERS}


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.stem)
def test_a_public_header_opens_with_what_it_holds(header: Path) -> None:
    assert len(opening(header)) > 60


def test_the_extension_exports_its_entry_point_alone() -> None:
    if sys.platform != "linux" or shutil.which("nm") is None:
        pytest.skip("scripts/symbols needs nm and an ELF file")
    done = subprocess.run(
        [ROOT / "scripts" / "symbols", _C.__file__, ROOT / "cpp" / "symbols" / "_C.txt"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_symbol_that_is_gone_is_named_with_the_command_that_writes_the_list(
    tmp_path: Path,
) -> None:
    if sys.platform != "linux" or shutil.which("nm") is None:
        pytest.skip("scripts/symbols needs nm and an ELF file")
    symbols = tmp_path / "symbols.txt"
    symbols.write_text("PyInit__C\nastrai_gone\n", encoding="utf-8")

    done = subprocess.run(
        [ROOT / "scripts" / "symbols", _C.__file__, symbols], capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "< astrai_gone" in done.stdout
    assert f"scripts/symbols {_C.__file__} {symbols} --update" in done.stdout


def test_modules_can_tell_whether_they_share_types() -> None:
    assert re.fullmatch(r"__pybind11_internals_v\d+_\w+__", _C.PYBIND11_INTERNALS_ID)
