"""Environment variables (`VARIABLES`), read once, and the report of `python -m astrai.env`.

The lowest Python layer: imports nothing of astrai but _C, and torch only inside report().
Thread safe.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from importlib import util
from pathlib import Path

from astrai import _C

__all__ = [
    "ATTENTION_BACKENDS",
    "LOG_LEVELS",
    "VARIABLES",
    "api_keys",
    "attention_backend",
    "cache_dir",
    "cmake_prefix",
    "log_level",
    "reload",
    "report",
]

ATTENTION_BACKENDS = ("cuda", "torch_native", "flash")
LOG_LEVELS = ("debug", "info", "warning", "error")
VARIABLES = {
    "ASTR_BACKEND": "attention backend of the process: cuda, flash or torch_native; unset: "
    "automatic. Strict: a call that it cannot run fails",
    "ASTRAI_API_KEY": "keys of astrai-serve, with commas between them; --api-key and the YAML "
    "file win",
    "ASTRAI_CACHE_DIR": "folder of downloaded models; unset: $XDG_CACHE_HOME/astrai or "
    "~/.cache/astrai",
    "ASTRAI_LOG_LEVEL": "debug, info, warning or error; --log-level wins",
}


@cache
def attention_backend() -> str:
    """The value of ASTR_BACKEND, "" when unset. Raises ValueError for an unknown one."""
    return _choice("ASTR_BACKEND", ATTENTION_BACKENDS, "")


@cache
def log_level() -> str:
    """The value of ASTRAI_LOG_LEVEL, "info" when unset. Raises ValueError for an unknown one."""
    return _choice("ASTRAI_LOG_LEVEL", LOG_LEVELS, "info")


@cache
def api_keys() -> str:
    """The value of ASTRAI_API_KEY, "" when unset."""
    return os.environ.get("ASTRAI_API_KEY", "").strip()


@cache
def cache_dir() -> Path:
    """The folder of downloaded models; not created here."""
    named = os.environ.get("ASTRAI_CACHE_DIR", "").strip()
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "astrai"


def reload() -> None:
    """Forget what was read, so that the next use reads the environment again; for tests."""
    for read in (attention_backend, log_level, api_keys, cache_dir):
        read.cache_clear()


def cmake_prefix() -> Path:
    """What to add to CMAKE_PREFIX_PATH so that find_package(astrai) finds this installation.

    Raises RuntimeError in a source tree, where only an extension built in place lies.
    """
    package = Path(_C.__file__).parent
    config = package / "lib" / "cmake" / "astrai" / "astraiConfig.cmake"
    if not config.is_file():
        raise RuntimeError(
            f"astrai.env: no CMake package at {config}; "
            "this is a source tree, install it with `pip install .`"
        )
    return package


def report() -> dict[str, object]:
    """The build, the machine and the environment variables in force; imports torch if present."""
    return {
        "astrai": _C.__version__,
        "location": str(Path(_C.__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": _usable_cpus(),
        "cuda_kernels": _C.BUILT_WITH_CUDA,
        "cuda_kernels_reason": _C.CUDA_REASON,
        "cuda_archs": _C.cuda_archs(),
        "instances": {
            kernel: [f"{dtype}/{head_dim or 'any'}" for dtype, head_dim in pairs]
            for kernel, pairs in _C.compiled_instances().items()
        },
        "torch": _torch_report(),
        "packages": {name: _version(name) for name in ("tokenizers", "gguf", "fastapi", "uvicorn")},
        "ASTR_BACKEND": _or_error(attention_backend),
        "ASTRAI_LOG_LEVEL": _or_error(log_level),
        "cache_dir": str(cache_dir()),
    }


def _choice(variable: str, accepted: tuple[str, ...], default: str) -> str:
    value = os.environ.get(variable, "").strip().lower()
    if value and value not in accepted:
        raise ValueError(f"{variable} is '{value}'; accepted: {', '.join(accepted)}, or unset")
    return value or default


def _or_error(read: Callable[[], str]) -> str:
    """A bad variable must not hide the rest of the report."""
    try:
        return read()
    except ValueError as error:
        return f"error: {error}"


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    from importlib import metadata  # slow to import, and only the report asks

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch_report() -> dict[str, object] | None:
    if util.find_spec("torch") is None:
        return None
    import torch

    gpus = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(i)
            gpus.append(f"{torch.cuda.get_device_name(i)} ({major}.{minor})")
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "threads": torch.get_num_threads(),
    }


def _print_lines(report: dict[str, object], indent: str = "") -> None:
    for key, value in report.items():
        if isinstance(value, dict):
            print(f"{indent}{key}:")
            _print_lines(value, indent + "  ")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            print(f"{indent}{key}: {'none' if text is None or text == '' else text}")


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `python -m astrai.env`."""
    parser = argparse.ArgumentParser(
        prog="python -m astrai.env",
        description="What this AstrAI is",
        epilog="Environment variables: " + ", ".join(VARIABLES) + ".",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument(
        "--cmake-prefix", action="store_true", help="print the folder for CMAKE_PREFIX_PATH"
    )
    options = parser.parse_args(arguments)
    if options.cmake_prefix:
        try:
            print(cmake_prefix())
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
    elif options.json:
        print(json.dumps(report(), indent=2))
    else:
        _print_lines(report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
