"""The work that engines are compared on, W1 to W5: prompts of token ids and numbers of tokens.

Every list is made from a seed by Python's generator, so that each engine gets the same requests.
Prompts are random ids below 10 001 and no end token stops a text; temperature is 0.6.

W1 all at once, 256 requests of 100 to 1024 tokens with 100 to 1024 output tokens; W2 the same, 128
W3 one request at a time: 512 tokens in, 256 out
W4 64 requests with a common prefix of 4096 tokens and 128 of their own
W5 requests at Poisson times: 100 to 1024 tokens in, 32 to 256 out
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from astrai.models.config import ModelConfig
from astrai.models.rope import RopeConfig

TEMPERATURE = 0.6
_HIGHEST_ID = 10_000


@dataclass(frozen=True, slots=True)
class Work:
    """prompt_ids of one request, and how many tokens it generates."""

    prompt_ids: list[int]
    n_output: int


def at_once(n: int, seed: int = 0, low: int = 100, high: int = 1024) -> list[Work]:
    """W1 and W2: all prompts are drawn before the first number of output tokens."""
    rng = random.Random(seed)
    prompts = [_ids(rng, rng.randint(low, high)) for _ in range(n)]
    return [Work(prompt_ids, rng.randint(low, high)) for prompt_ids in prompts]


def single(n_prompt: int = 512, n_output: int = 256, seed: int = 0) -> Work:
    """W3."""
    return Work(_ids(random.Random(seed), n_prompt), n_output)


def common_prefix(n_output: int, variant: int = 0, n: int = 64) -> list[Work]:
    """W4. The prefix is one id many times; another variant has other tokens after it."""
    prefix = _ids(random.Random(1), 1) * 4096
    rng = random.Random(1000 + 7 + variant)
    return [Work(prefix + _ids(rng, 128), n_output) for _ in range(n)]


def serving(n: int, seed: int = 2) -> list[Work]:
    """W5; the list for a smaller n is the beginning of a larger one's."""
    rng = random.Random(seed)
    return [Work(_ids(rng, rng.randint(100, 1024)), rng.randint(32, 256)) for _ in range(n)]


def arrival_times(n: int, rate: float | None, seed: int = 3) -> list[float]:
    """Seconds from the start at `rate` requests a second; None is all at once."""
    rng = random.Random(seed)
    times, now = [], 0.0
    for _ in range(n):
        times.append(now)
        now += 0.0 if rate is None else rng.expovariate(rate)
    return times


def _ids(rng: random.Random, n: int) -> list[int]:
    return [rng.randint(0, _HIGHEST_ID) for _ in range(n)]


QWEN = ModelConfig(  # the shape of Qwen3-0.6B
    architecture="qwen3",
    vocab_size=151936,
    hidden_size=1024,
    n_layers=28,
    n_heads=16,
    n_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=40960,
    rope=RopeConfig(theta=1e6),
    use_qk_norm=True,
)
LLAMA = ModelConfig(  # the shape of Llama-3.1-8B
    architecture="llama",
    vocab_size=128256,
    hidden_size=4096,
    n_layers=32,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    max_position_embeddings=131072,
    rope=RopeConfig(
        rope_type="llama3",
        theta=500000.0,
        factor=8.0,
        original_max_len=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    ),
)
MODELS = {"qwen": QWEN, "llama": LLAMA}
