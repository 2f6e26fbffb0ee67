"""Fetching a model from the Hugging Face hub by its id."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from astrai.models.errors import ModelLoadError

__all__ = ["fetch_from_hub", "is_hub_id"]

_HUB_ID = re.compile(
    r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w][\w./-]*))?\Z", re.ASCII
)
# No pickles and no code: only what the loader reads.
_PATTERNS = ("*.safetensors", "*.json", "*.jinja")
# The same weights once more, in the form of their authors or of another runtime.
_COPIES = ("consolidated*.safetensors", "original/*", "onnx/*")


def is_hub_id(source: str) -> bool:
    """Does a string look like OWNER/NAME or OWNER/NAME@REVISION?"""
    return bool(_HUB_ID.match(source)) and ".." not in source


def fetch_from_hub(hub_id: str, progress: bool = True) -> Path:
    """The local folder of a hub model, fetched into huggingface_hub's own cache when it is not
    there. hub_id: OWNER/NAME, and @ with a branch, tag or commit where it is not to be the main
    one. progress: the library's bars, on a terminal.

    Honours HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE. Raises ModelLoadError when the hub
    cannot be reached or does not have it."""
    from huggingface_hub import snapshot_download

    match = _HUB_ID.match(hub_id)
    if match is None:
        raise ModelLoadError(hub_id, "is no hub id (OWNER/NAME or OWNER/NAME@REVISION).")
    try:
        folder = snapshot_download(
            match["id"],
            revision=match["revision"],
            allow_patterns=list(_PATTERNS),
            ignore_patterns=list(_COPIES),
            tqdm_class=None if progress else _silent_bar(),
        )
    except Exception as error:  # the library raises its own, httpx's and the system's errors
        raise ModelLoadError(
            hub_id,
            f"cannot be fetched from the Hugging Face hub: {type(error).__name__}: {error}",
            "Check the id and the network, or pass --model with a local folder or .gguf file.",
        ) from error
    return Path(folder)


def _silent_bar() -> type[Any]:
    from tqdm import tqdm

    class Silent(tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

    return Silent
