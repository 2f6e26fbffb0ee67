"""Which executor and sampler serve a model: the one choice by device and build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astrai.engine.device_executor import DeviceExecutor
from astrai.engine.executor import StepExecutor
from astrai.engine.prompt_runner import max_prompt_rows
from astrai.engine.protocols import Executor
from astrai.extension import ops
from astrai.sampling import Sampler
from astrai.sampling.device_sampler import DeviceSampler

if TYPE_CHECKING:
    from astrai.kvcache import PagePool
    from astrai.models import CausalLM

__all__ = ["executor_for"]

_MAX_DEVICE_VOCAB = 262144  # of `ops.sample`


def executor_for(
    model: CausalLM,
    pool: PagePool,
    enable_cuda_graph: bool = True,
    prefill_chunk: int | None = None,
) -> tuple[Executor, Sampler]:
    """Draws on the GPU, one step ahead of the host, where model and build allow it; else step by
    step. prefill_chunk: prompt tokens in one step, None without limit."""
    vocab_size = model.config.vocab_size
    draws_on_device = (
        pool.device.type == "cuda"
        and vocab_size <= _MAX_DEVICE_VOCAB
        and ops.is_available("sample", model.dtype)
    )
    if not draws_on_device:
        sampler = Sampler(vocab_size)
        return StepExecutor(model, pool, sampler), sampler
    host = pool.host
    device_sampler = DeviceSampler(vocab_size, pool.device, host.max_batch_size, host.max_seq_len)
    rows = max_prompt_rows(pool.host.max_batch_size, prefill_chunk)
    return DeviceExecutor(model, pool, device_sampler, enable_cuda_graph, rows), device_sampler
