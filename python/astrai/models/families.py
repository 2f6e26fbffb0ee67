"""What sets one model family apart: a description, filled in by one small file per family.

The decoder itself (`decoder.py`) is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Family"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family of decoder-only models."""

    name: str
    hf_architecture: str  # entry of config.json "architectures"
    gguf_architecture: str  # value of the GGUF key general.architecture
    has_qk_norm: bool  # RMS norm of each query and key head before rotary
    # Do GGUF files of this family hold q and k rows as interleaved pairs already? The usual
    # converter permutes them for llama and leaves the half-split order for the others.
    gguf_rows_interleaved: bool
    # Values of config.json keys that a file may leave out, as the family's authors define them.
    hf_defaults: Mapping[str, Any] = field(default_factory=dict)
