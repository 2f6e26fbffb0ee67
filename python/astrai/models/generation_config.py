"""generation_config.json: the ids that end a text, and how its authors sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from astrai.models.config_keys import token_ids
from astrai.models.errors import ModelLoadError
from astrai.models.weights_hf import read_json_object
from astrai.sampling import SamplingParams

__all__ = ["GenerationConfig", "check_sampling", "read_generation_config"]

_SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """What the file says; empty where there is none."""

    end_ids: tuple[int, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)  # unchecked, see check_sampling


def read_generation_config(folder: Path) -> GenerationConfig:
    """The settings of a model folder. Raises ModelLoadError for a file that cannot be read."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return GenerationConfig()
    values = read_json_object(path)
    try:
        end_ids = token_ids(values.get("eos_token_id"), "eos_token_id")
    except ValueError as error:
        raise ModelLoadError(path, str(error)) from error
    sampling = {name: values[name] for name in _SAMPLING if values.get(name) is not None}
    return GenerationConfig(end_ids, sampling)


def check_sampling(sampling: Mapping[str, float], source: str) -> Mapping[str, float]:
    """The same, in the types of `SamplingParams`. source: the model's folder, for the error.
    Raises ModelLoadError for a value out of its range."""
    try:
        SamplingParams(**sampling).validate(1)  # type: ignore[arg-type]  # validate checks types
    except ValueError as error:
        raise ModelLoadError(
            Path(source) / "generation_config.json",
            f"{error}.",
            "Correct the file, or start without --generation-config auto.",
        ) from error
    return {name: v if name == "top_k" else float(v) for name, v in sampling.items()}
