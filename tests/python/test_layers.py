"""Imports and includes point down only: the order of the layers, enforced on the source text.

Reads the source tree. Imports inside functions count; those under TYPE_CHECKING, which never run,
do not.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "astrai"

# Lowest first; a module may import its own layer and those before it.
LAYERS = (
    ("astrai._C",),
    ("astrai.env", "astrai.requirements"),
    ("astrai.kvcache", "astrai.text"),
    ("astrai.structured",),
    ("astrai.extension.ops",),
    ("astrai.extension.backend",),
    ("astrai.extension",),
    ("astrai.sampling", "astrai.models"),
    ("astrai.engine",),
    ("astrai.server",),
    ("astrai.cli", "astrai.__main__", "astrai.deploy"),
)

PYTHON_SOURCES = sorted(PACKAGE.rglob("*.py"))
CPP_SOURCES = sorted(
    path
    for folder in ("cpp", "cuda")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".in"}
)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int | None:
    """Index into LAYERS of the longest prefix that names the module; None for astrai itself."""
    best: tuple[int, int] | None = None
    for index, names in enumerate(LAYERS):
        for name in names:
            if module == name or module.startswith(name + "."):
                candidate = (len(name), index)
                best = candidate if best is None else max(best, candidate)
    return None if best is None else best[1]


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes but the bodies of `if TYPE_CHECKING:`, which the program never executes."""
    nodes: list[ast.AST] = [tree]
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                nodes.extend(run_time_nodes(other))
        else:
            nodes.extend(run_time_nodes(child))
    return nodes


def imported_modules(path: Path) -> set[str]:
    """Absolute names of the astrai modules that a file imports at run time."""
    package = (
        module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    )
    names: set[str] = set()
    for node in run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, node.module] if node.module else up)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return {name for name in names if name.split(".")[0] == "astrai"}


def is_upward(module: str, imported: str) -> bool:
    own, other = layer_of(module), layer_of(imported)
    return own is not None and other is not None and other > own


@pytest.mark.parametrize("path", PYTHON_SOURCES, ids=lambda path: module_name(path))
def test_a_module_imports_no_higher_layer(path: Path) -> None:
    module = module_name(path)
    upward = sorted(name for name in imported_modules(path) if is_upward(module, name))
    assert not upward, f"{module} imports {', '.join(upward)}, which lie above it"


def test_every_module_belongs_to_a_layer() -> None:
    homeless = [module_name(path) for path in PYTHON_SOURCES if layer_of(module_name(path)) is None]
    assert homeless == ["astrai"]


def test_an_upward_import_would_be_found(tmp_path: Path) -> None:
    assert is_upward("astrai.kvcache.pool", "astrai.engine.InferenceEngine")
    assert is_upward("astrai.extension.ops.rotary_emb", "astrai.extension.backend.base")
    assert not is_upward("astrai.engine.scheduler", "astrai.kvcache.PagePool")
    assert not is_upward("astrai.extension.backend.cuda", "astrai.extension.ops")


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), flags=re.MULTILINE)


def test_pybind11_is_included_by_the_bindings_alone() -> None:
    for path in CPP_SOURCES:
        if path.parent != ROOT / "cpp" / "bindings":
            assert not [
                name for name in includes(path) if "pybind11" in name or name == "Python.h"
            ], path


def test_cuda_headers_are_included_under_cuda_alone() -> None:
    for path in CPP_SOURCES:
        if ROOT / "cuda" not in path.parents:
            assert not [name for name in includes(path) if "cuda" in name], path


def test_nothing_includes_torch() -> None:
    for path in CPP_SOURCES:
        forbidden = [name for name in includes(path) if re.match(r"(torch|ATen|c10)/", name)]
        assert not forbidden, path


def test_public_headers_include_the_standard_library_and_each_other_alone() -> None:
    for path in sorted((ROOT / "cpp" / "include").rglob("*.h")):
        for name in includes(path):
            assert name.startswith("astrai/") or re.fullmatch(r"[a-z_0-9]+", name), (
                f"{path}: {name}"
            )
