"""The families this build knows, and how a checkpoint's name for one is looked up."""

from __future__ import annotations

from astrai.models.families import Family
from astrai.models.llama import LLAMA
from astrai.models.qwen3 import QWEN3

__all__ = ["FAMILIES", "family_of_gguf", "family_of_hf"]

FAMILIES: tuple[Family, ...] = (LLAMA, QWEN3)


def family_of_hf(architecture: object) -> Family:
    """The family of a config.json architecture; ValueError names those supported."""
    for family in FAMILIES:
        if family.hf_architecture == architecture:
            return family
    known = ", ".join(family.hf_architecture for family in FAMILIES)
    raise ValueError(f"architecture {architecture!r} is not supported; supported are {known}.")


def family_of_gguf(architecture: object) -> Family:
    """The family of a GGUF general.architecture; ValueError names those supported."""
    for family in FAMILIES:
        if family.gguf_architecture == architecture:
            return family
    known = ", ".join(family.gguf_architecture for family in FAMILIES)
    raise ValueError(
        f"general.architecture {architecture!r} is not supported; supported are {known}."
    )
