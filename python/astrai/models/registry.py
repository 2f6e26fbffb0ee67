"""The families this build knows, and how a checkpoint's name for one is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrai.models.families import Family
from astrai.models.gemma2 import GEMMA2
from astrai.models.gemma3 import GEMMA3
from astrai.models.glm4 import GLM4
from astrai.models.granite import GRANITE
from astrai.models.llama import LLAMA
from astrai.models.mistral import MISTRAL
from astrai.models.mixtral import MIXTRAL
from astrai.models.olmo2 import OLMO2
from astrai.models.phi3 import PHI3
from astrai.models.qwen2 import QWEN2
from astrai.models.qwen2_moe import QWEN2_MOE
from astrai.models.qwen3 import QWEN3
from astrai.models.qwen3_moe import QWEN3_MOE

__all__ = ["FAMILIES", "family_named", "family_of_gguf", "family_of_hf"]

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    PHI3,
    OLMO2,
    GRANITE,
    GLM4,
    GEMMA2,
    GEMMA3,
)


def family_named(name: str) -> Family:
    """The family of `ModelConfig.architecture`; ValueError names those there are."""
    for family in FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise ValueError(f"architecture {name!r} is no family; there are {known}.")


def family_of_hf(architecture: object) -> Family:
    """The family of a config.json architecture; ValueError names those supported."""
    for family in FAMILIES:
        if architecture in family.hf_architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.hf_architectures)
    raise ValueError(f"architecture {architecture!r} is not supported; supported are {known}.")


def family_of_gguf(metadata: Mapping[str, Any]) -> Family:
    """The family that GGUF metadata names; ValueError lists those supported. Of two of one name,
    the one that has experts is meant where the file counts some."""
    architecture = metadata.get("general.architecture")
    named = [family for family in FAMILIES if family.gguf_architecture is not None]
    found = [family for family in named if family.gguf_architecture == architecture]
    if not found:
        known = ", ".join(dict.fromkeys(str(family.gguf_architecture) for family in named))
        raise ValueError(
            f"general.architecture {architecture!r} is not supported; supported are {known}."
        )
    has_experts = bool(metadata.get(f"{architecture}.expert_count"))
    fitting = [family for family in found if (family.layer.experts is not None) == has_experts]
    return fitting[0] if fitting else found[0]
