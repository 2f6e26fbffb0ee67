"""Sizes that follow from the model and the device when nobody says: the chunks of prompts, and the
slots of the pool, which on a GPU are what the memory ledger leaves, on a CPU a share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from astrai.engine.memory_ledger import MemoryLedger, StepLimits, gpu_ledger
from astrai.engine.prefill_chunk import PrefillChunk

if TYPE_CHECKING:
    from astrai.models import CausalLM

__all__ = ["auto_chunk", "default_kv_tokens", "free_memory_bytes", "size_pool"]

_CPU_CHUNK = 512
_CHUNK_FLOPS = 0.030 * 600e12
_MOST_CHUNK = 4096
_CPU_SHARE = 0.25  # the rest of the memory belongs to others
_CGROUP = Path("/sys/fs/cgroup")


def auto_chunk(model: CausalLM) -> PrefillChunk:
    """Prompt tokens of one step.

    On a GPU, while few requests wait, a power of two whose products take about 30 ms at 600
    TFLOP/s, and fewer far behind the beginning of a long prompt, where attention takes longer than
    the products. Launching a step takes time of its own, so that smaller chunks than 512 at the
    beginning would cost more than they give.
    """
    if model.device.type == "cpu":
        return PrefillChunk(_CPU_CHUNK, _CPU_CHUNK)
    token_flops = 2.0 * sum(weight.numel() for weight in model.parameters())
    config = model.config
    n_full = sum(config.window_of(layer_id) is None for layer_id in range(config.n_layers))
    n_tokens = int(_CHUNK_FLOPS / token_flops)
    least = min(_MOST_CHUNK, max(512, 1 << (n_tokens.bit_length() - 1)))
    return PrefillChunk(
        least,
        _MOST_CHUNK,
        cost=max(_CHUNK_FLOPS, least * token_flops),
        token_cost=token_flops,
        pair_cost=4.0 * n_full * config.n_heads * config.head_dim,
    )


def size_pool(
    model: CausalLM,
    limits: StepLimits,
    is_paged: bool,
    kv_tokens: int | None,
    gpu_memory_utilization: float,
) -> tuple[int | None, MemoryLedger | None]:
    """Slots of the pool, None for the contiguous one, and on a GPU the ledger that has room for
    them. kv_tokens: slots asked for. Raises NotEnoughMemoryError."""
    if model.device.type != "cuda":
        if is_paged and kv_tokens is None:
            kv_tokens = default_kv_tokens(
                model, limits.max_batch_size, limits.max_seq_len, limits.page_size
            )
        return kv_tokens if is_paged else None, None
    asked = kv_tokens if is_paged else limits.max_batch_size * limits.max_seq_len
    ledger = gpu_ledger(model, limits, gpu_memory_utilization, asked)
    return ledger.kv_tokens if is_paged else None, ledger


def default_kv_tokens(
    model: CausalLM, max_batch_size: int, max_seq_len: int, page_size: int
) -> int:
    """Slots for max_batch_size full sequences, or for the share of free memory if that is less.

    A multiple of page_size, at least one page. Call it after the weights are in their place.
    """
    config = model.config
    token_bytes = 2 * config.n_layers * config.n_kv_heads * config.head_dim * model.dtype.itemsize
    affordable = int(free_memory_bytes() * _CPU_SHARE) // token_bytes
    n_pages = -(-max_seq_len // page_size) * max_batch_size
    return max(1, min(n_pages, affordable // page_size)) * page_size


def free_memory_bytes() -> int:
    """Memory that an allocation could get: of the machine and its cgroup."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # counts the page cache, which the kernel gives up when asked
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return max(free, 0)
