"""The one error of model loading. Its message names the file, the tensor or key, and the remedy."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ModelLoadError"]


class ModelLoadError(ValueError):
    """A model that cannot be loaded: missing, malformed or unsupported files."""

    def __init__(self, where: str | Path | None, problem: str, remedy: str = "") -> None:
        """where: the file or folder at fault, None when problem names it already."""
        message = problem if where is None else f"{where}: {problem}"
        super().__init__(f"{message} {remedy}" if remedy else message)
