"""How many token slots a paged pool gets when nobody says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from astrai.models import CausalLM

__all__ = ["default_kv_tokens", "free_memory_bytes"]

_CPU_SHARE = 0.25  # the rest of the memory belongs to others
_GPU_SHARE = 0.85  # what is left holds activations, workspaces and other libraries
_CGROUP = Path("/sys/fs/cgroup")


def default_kv_tokens(
    model: CausalLM, max_batch_size: int, max_seq_len: int, page_size: int
) -> int:
    """Slots for max_batch_size full sequences, or for the share of free memory if that is less.

    A multiple of page_size, at least one page. Call it after the weights are in their place.
    """
    config = model.config
    token_bytes = 2 * config.n_layers * config.n_kv_heads * config.head_dim * model.dtype.itemsize
    share = _CPU_SHARE if model.device.type == "cpu" else _GPU_SHARE
    affordable = int(free_memory_bytes(model.device) * share) // token_bytes
    n_pages = -(-max_seq_len // page_size) * max_batch_size
    return max(1, min(n_pages, affordable // page_size)) * page_size


def free_memory_bytes(device: torch.device) -> int:
    """Memory that an allocation could get: of the card, or of the machine and its cgroup."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # counts the page cache, which the kernel gives up when asked
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return max(free, 0)
