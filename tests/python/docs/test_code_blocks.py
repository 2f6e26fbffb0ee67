"""Every code block that a document marks as run is run, as it stands, on a tiny model.

Blocks that need packages beside the tests' own are run by scripts/client_examples.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from code_blocks import ADDRESS, CodeBlock, marked_blocks

import astrai
from astrai import InferenceEngine, env

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TESTS_PACKAGES = {"anthropic", "openai"}  # of the extra "test"
TIMEOUT_S = 300

BLOCKS = [(path, block) for path in DOCUMENTS for block in marked_blocks(path)]


def chosen(*hows: str) -> pytest.MarkDecorator:
    blocks = [
        pytest.param(block, id=f"{path.name}:{block.line}")
        for path, block in BLOCKS
        if block.how in hows and set(block.packages) <= TESTS_PACKAGES
    ]
    return pytest.mark.parametrize("block", blocks)


@chosen("python")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_python_blocks_run_against_a_server(
    block: CodeBlock, server_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(compile(block.text.replace(ADDRESS, server_url), block.heading, "exec"), names)
    assert capsys.readouterr().out.strip()
    # A short example closes no client: its sockets go here, not within whatever test is next.
    names.clear()
    gc.collect()


@chosen("bash")
def test_bash_blocks_run_against_a_server(
    block: CodeBlock, server_url: str, tmp_path: Path
) -> None:
    # A curl that gets an error status fails, which it does only when asked to.
    strict = 'curl() { command curl --fail-with-body "$@"; }\n'
    package = Path(astrai.__file__).parents[1]
    found = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", strict + block.text.replace(ADDRESS, server_url)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=tmp_path,
        env={**os.environ, "PATH": found, "PYTHONPATH": str(package)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "document", dict.fromkeys(path for path, b in BLOCKS if b.how == "engine"), ids=lambda p: p.name
)
def test_engine_blocks_of_a_page_run_in_order(
    document: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astrai.models.source.fetch_default_model", lambda progress: tiny_folder)
    names: dict[str, Any] = {}
    try:
        for block in marked_blocks(document):
            if block.how == "engine":
                code = compile(block.text, f"{document.name}:{block.line}", "exec")
                exec(code, names)
    finally:
        if isinstance(engine := names.get("engine"), InferenceEngine):
            engine.shutdown()


@chosen("cpp")
def test_cpp_blocks_compile_and_run(block: CodeBlock, tmp_path: Path) -> None:
    include, library = cpp_package()
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(block.text, encoding="utf-8")
    compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-Wall", "-Werror", f"-I{include}"]
    command = [*compiler, str(source), str(library), "-pthread", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def cpp_package() -> tuple[Path, Path]:
    """Headers and static library, of the installed package or of a build in the source tree."""
    try:
        prefix = env.cmake_prefix()
        return prefix / "include", prefix / "lib" / "libastrai_core.a"
    except RuntimeError as error:
        for library in sorted((ROOT / "build").glob("*/libastrai_core.a")):
            return ROOT / "cpp" / "include", library
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(f"no build of the C++ core: {error}")


def test_the_pages_for_users_are_run() -> None:
    """A page that loses its marks would go untested without a word."""
    expected = {"README.md", "clients.md", "cpp.md", "python-api.md"}
    expected |= {"quickstart.md", "structured-output.md", "tools.md"}
    assert expected <= {path.name for path, _ in BLOCKS}


def test_a_mark_needs_a_block_of_its_language(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n<!-- run: python -->\n```bash\nls\n```\n")
    with pytest.raises(ValueError, match="a block of bash is marked 'run: python'"):
        marked_blocks(page)
    page.write_text("# A\n<!-- run: python -->\n\n```python\nprint()\n```\n")
    with pytest.raises(ValueError, match="has no code block below it"):
        marked_blocks(page)
