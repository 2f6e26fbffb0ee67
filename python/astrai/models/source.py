"""From what a user names a model by to a local folder or GGUF file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from astrai.models.default_model import fetch_default_model
from astrai.models.errors import ModelLoadError
from astrai.models.gguf_parts import gguf_in_folder
from astrai.models.hub import fetch_from_hub, is_hub_id

__all__ = ["locate_model"]

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def locate_model(source: str | Path | None, progress: bool) -> Path:
    """The local folder or GGUF file of a source; fetches what is not local.

    source: a path, which may begin with ~ or file://, a hub id, or None for the default model.
    Raises ModelLoadError for what is none of them, and for pickles, which are never opened."""
    if source is None:
        return fetch_default_model(progress)
    path = _path_of(source)
    if path.is_dir():
        has_config = (path / "config.json").is_file()
        return path if has_config else gguf_in_folder(path) or path
    if path.is_file():
        _refuse_other_files(path)
        return path
    if isinstance(source, str) and is_hub_id(source):
        return fetch_from_hub(source, progress)
    raise ModelLoadError(
        str(source),
        "there is no such file or folder, and it is no hub id (OWNER/NAME).",
        "Name a Hugging Face model folder, a .gguf file or a hub id.",
    )


def _path_of(source: str | Path) -> Path:
    text = str(source)
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://").removeprefix("localhost/"))
        # file://localhost/a is file:///a; file://~/a is nobody's standard and everybody's habit.
        text = f"/{text}" if str(source).startswith("file://localhost/") else text
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~nobody
        raise ModelLoadError(text, f"has no such home folder: {error}.") from error


def _refuse_other_files(path: Path) -> None:
    if path.suffix in _PICKLES:
        raise ModelLoadError(
            path,
            "is a pickle, which can run code when opened; it has not been.",
            "Convert the model to safetensors, or name a folder or .gguf file of it.",
        )
    if path.suffix in (".safetensors", ".json"):
        raise ModelLoadError(path, "is one file of a model.", f"Name its folder, {path.parent}.")
