"""The documents against the tree: links, the settings in serving.md, Python and YAML blocks.

Reads the source tree, README.md and docs/.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from astrai.cli import bench, chat
from astrai.cli.config import read_config
from astrai.cli.options import server_options

ROOT = Path(__file__).resolve().parents[2]
SERVING = ROOT / "docs" / "guide" / "serving.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# Flags that are not settings: they are read before the settings, or by another program.
COMMAND_FLAGS = {"--config", "--help", "--version"}
# Flags of programs other than astrai-serve that documents name.
OTHER_FLAGS = {
    "--archs": "scripts/build_wheel",
    "--bind": "scripts/run_dockerfile",
    "--build": "cmake",
    "--cacert": "curl",
    "--cflags": "pkg-config",
    "--cmake-prefix": "python -m astrai.env",
    "--cuda": "scripts/build_wheel",
    "--define-variable": "pkg-config",
    "--env": "scripts/run_dockerfile",
    "--extra-index-url": "pip",
    "--fix": "scripts/check",
    "--from-literal": "kubectl",
    "--group": "pip",
    "--index-url": "pip",
    "--install": "cmake",
    "--kustomize": "kubectl",
    "--libs": "pkg-config",
    "--out": "scripts/build_wheel",
    "--prefix": "cmake",
    "--preset": "cmake",
    "--python": "scripts/build_wheel",
    "--root": "scripts/run_dockerfile",
    "--sdist": "python -m build",
    "--serve": "scripts/run_dockerfile",
    "--serve-with": "scripts/check_wheel",
    "--source": "scripts/build_wheel",
    "--update": "scripts/symbols",
    "--upgrade": "pip",
    "--variant": "debootstrap",
    "--work": "scripts/run_dockerfile",
    "--workflow": "cmake",
}

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
_SETTING_ROW = re.compile(r"^\| (`--[^|]*) \| `(\w+)` \| ", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language, their common indentation removed."""
    found = _FENCE.finditer(path.read_text(encoding="utf-8"))
    return [textwrap.dedent(fence.group(3)) for fence in found if fence.group(2) == language]


def prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(path)))
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_serving_md_lists_every_setting_with_its_flags_and_key_and_no_other() -> None:
    listed = {}
    for flags, key in _SETTING_ROW.findall(SERVING.read_text(encoding="utf-8")):
        listed[key] = set(_FLAG.findall(flags))
    expected = {}
    for option in server_options():
        names = {option.flag, *option.names} - ({option.field} - {option.flag})
        expected[option.field] = {"--" + name.replace("_", "-") for name in names}
        if option.kind is bool:
            expected[option.field].add("--no-" + option.flag.replace("_", "-"))
    assert listed == expected


def test_serving_md_gives_each_setting_its_default() -> None:
    text = SERVING.read_text(encoding="utf-8")
    for option in server_options():
        row = re.search(rf"^\| `--[^|]*` \| `{option.field}` \| ([^|]*) \|", text, re.MULTILINE)
        assert row is not None, option.field
        told = row.group(1).strip("`")
        if isinstance(option.default, bool):
            assert told == ("on" if option.default else "off"), option.field
        elif option.default not in (None, ()):
            default = f"{option.default:g}" if option.kind is float else str(option.default)
            assert told == default, option.field


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_flag_named_exists(path: Path) -> None:
    known = {"--" + name.replace("_", "-") for option in server_options() for name in option.names}
    known |= {"--no-" + o.flag.replace("_", "-") for o in server_options() if o.kind is bool}
    known |= COMMAND_FLAGS | OTHER_FLAGS.keys()
    for program in (bench, chat):
        for action in program.make_parser()._actions:
            known |= set(action.option_strings)
    flags = {flag.replace("_", "-") for flag in _FLAG.findall(path.read_text(encoding="utf-8"))}
    # Placeholders of messages: --X and --Y have capitals and are no match of _FLAG.
    assert not flags - known


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_python_blocks_parse(path: Path) -> None:
    for block in blocks(path, "python"):
        ast.parse(block, filename=name_of(path))


def test_yaml_blocks_and_the_sample_file_are_accepted(tmp_path: Path) -> None:
    texts = [block for path in DOCUMENTS for block in blocks(path, "yaml")]
    texts.append((ROOT / "docker" / "serve.yaml").read_text(encoding="utf-8"))
    for text in texts:
        file = tmp_path / "serve.yaml"
        file.write_text(text, encoding="utf-8")
        read_config(file, server_options())
        assert yaml.safe_load(text)["server"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_file_named_exists(path: Path) -> None:
    """Paths in backticks that begin with a folder of the repository; capitals are placeholders."""
    folders = r"(?:\.ci|benchmarks|cmake|cpp|cuda|deploy|docker|docs|examples|python|scripts|tests)"
    named = re.findall(rf"`({folders}/[\w./-]*)`", prose(path))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not [name for name in missing if not re.search(r"[A-Z]{2}", name)]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
