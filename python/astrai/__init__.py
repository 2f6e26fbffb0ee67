"""AstrAI: LLM inference engine and server.

Importing this package is cheap: the names below load their modules, and torch, when first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astrai._C import KernelUnavailableError as KernelUnavailableError
    from astrai._C import __version__ as __version__
    from astrai.engine import GenerateResult as GenerateResult
    from astrai.engine import InferenceEngine as InferenceEngine
    from astrai.models import load_model as load_model
    from astrai.sampling import SamplingParams as SamplingParams

if sys.version_info < (3, 10):  # noqa: UP036 - a wheel's tag can be bypassed, by PYTHONPATH for one
    raise ImportError(
        f"astrai needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}. "
        "Make an environment of a newer one: python3.12 -m venv ENV"
    )

_HOMES = {
    "GenerateResult": "astrai.engine",
    "InferenceEngine": "astrai.engine",
    "KernelUnavailableError": "astrai._C",
    "SamplingParams": "astrai.sampling",
    "__version__": "astrai._C",
    "load_model": "astrai.models",
}

__all__ = [
    "GenerateResult",
    "InferenceEngine",
    "KernelUnavailableError",
    "SamplingParams",
    "__version__",
    "load_model",
]


def __getattr__(name: str) -> object:
    if name == "_C":
        return _extension()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'astrai' has no attribute '{name}'")
    if home != "astrai._C":
        importlib.import_module("astrai.requirements").require_torch()
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def _extension() -> object:
    """`from astrai import _C` comes here first; import that has a better word for its absence."""
    try:
        return importlib.import_module("astrai._C")
    except ModuleNotFoundError as error:
        from pathlib import Path  # not for every import of astrai

        built = sorted(path.name for path in Path(__file__).parent.glob("_C.*.so"))
        raise ImportError(
            f"astrai._C was built for {', '.join(built) or 'no Python'}; {sys.executable} is "
            f"Python {sys.version.split()[0]} ({sys.implementation.cache_tag}). "
            "Install astrai with this Python's own pip: python -m pip install astrai"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
