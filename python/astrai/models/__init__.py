"""Models: configurations, weights and the decoder they run."""

from __future__ import annotations

from astrai.models.config import ModelConfig
from astrai.models.decoder import CausalLM
from astrai.models.errors import ModelLoadError
from astrai.models.loader import LoadedModel, load_model, open_checkpoint
from astrai.models.rope import RopeConfig
from astrai.models.rotary import RotaryEmbedding

__all__ = [
    "CausalLM",
    "LoadedModel",
    "ModelConfig",
    "ModelLoadError",
    "RopeConfig",
    "RotaryEmbedding",
    "load_model",
    "open_checkpoint",
]
