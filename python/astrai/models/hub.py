"""Fetching a model from the Hugging Face hub by its id."""

from __future__ import annotations

import re
from pathlib import Path

from astrai.models.errors import ModelLoadError

__all__ = ["fetch_from_hub", "is_hub_id"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII)
# No pickles and no code: only what the loader reads.
_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja")


def is_hub_id(source: str) -> bool:
    """Does a string look like OWNER/NAME?"""
    return bool(_HUB_ID.match(source)) and ".." not in source


def fetch_from_hub(hub_id: str) -> Path:
    """The local folder of a hub model, fetched into huggingface_hub's own cache when it is not
    there. Honours HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE. Raises ModelLoadError when the hub
    cannot be reached or does not have it."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_PATTERNS)))
    except Exception as error:  # the library raises its own, httpx's and the system's errors
        raise ModelLoadError(
            hub_id,
            f"cannot be fetched from the Hugging Face hub: {type(error).__name__}: {error}",
            "Check the id and the network, or pass --model with a local folder or .gguf file.",
        ) from error
