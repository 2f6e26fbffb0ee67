"""Sampling: parameters, the strategy pipeline and the engine's batched sampler."""

from __future__ import annotations

from astrai.sampling.logprobs import TokenLogprob
from astrai.sampling.params import SamplingParams
from astrai.sampling.sampler import SampledRows, Sampler
from astrai.sampling.strategies import (
    BaseSamplingStrategy,
    MinPStrategy,
    SamplingPipeline,
    TemperatureStrategy,
    TopKStrategy,
    TopPStrategy,
    sample,
)

__all__ = [
    "BaseSamplingStrategy",
    "MinPStrategy",
    "SampledRows",
    "Sampler",
    "SamplingParams",
    "SamplingPipeline",
    "TemperatureStrategy",
    "TokenLogprob",
    "TopKStrategy",
    "TopPStrategy",
    "sample",
]
