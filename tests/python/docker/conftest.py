"""Makes the modules of docker/ and scripts/lib/ importable, and finds the linters.

The installed package gives `astrai`; in production docker/serve_runtime.py takes the checkout's.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPO / "docker"), str(REPO / "scripts" / "lib")]


@pytest.fixture(scope="session")
def tool() -> Callable[[str, str], str]:
    """The path of a program that a package of the dev extra brings. CI must have it."""

    def find(program: str, package: str) -> str:
        beside_python = Path(sys.executable).parent / program
        found = str(beside_python) if beside_python.exists() else shutil.which(program)
        if found is None:
            message = f"{program} is missing: pip install {package}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        return found

    return find
