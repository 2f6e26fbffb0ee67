"""AstrAI: LLM inference engine and server.

Importing this package is cheap: the names below load their modules, and torch, when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astrai._C import KernelUnavailableError as KernelUnavailableError
    from astrai._C import __version__ as __version__
    from astrai.engine import GenerateResult as GenerateResult
    from astrai.engine import InferenceEngine as InferenceEngine
    from astrai.models import load_model as load_model
    from astrai.sampling import SamplingParams as SamplingParams

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
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'astrai' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
