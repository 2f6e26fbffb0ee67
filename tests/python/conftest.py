"""Shared by all tests: tests marked `gpu` are skipped where torch sees no CUDA device, and those
marked `model` get the default model from one fixture.

Imports torch and pytest alone, so that GPU tests can be collected where nothing else is installed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from astrai.models import LoadedModel

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The folder of reference records; its README says what they hold."""
    return GOLDENS


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, fetched into the cache folder once. For tests marked `model`.

    Where it cannot be fetched the tests are skipped, but in CI they fail."""
    from astrai.models import ModelLoadError
    from astrai.models.default_model import fetch_default_model

    try:
        return fetch_default_model(progress=False)
    except ModelLoadError as error:
        if os.environ.get("CI"):
            pytest.fail(f"the default model is needed in CI: {error}")
        pytest.skip(f"the default model is missing: {error}")


@pytest.fixture(scope="session")
def default_model(default_model_path: Path) -> LoadedModel:
    """The default model in float32 on the CPU. Not to be modified."""
    from astrai.models import load_model

    return load_model(default_model_path, device="cpu", dtype="float32", progress=False)
