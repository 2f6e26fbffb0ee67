"""What a GPU's memory is for, computed before the KV pool is made; nothing is tried out.

    total * utilization = in use already + step + graphs + sampling + workspaces + KV pool

What is in use already holds the weights, the CUDA context and whatever others have. The rest is
arithmetic over the model's sizes and the engine's limits, so that after the start nothing grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from astrai.engine.decode_runner import N_GRAPH_KINDS, graph_sizes
from astrai.engine.prompt_runner import max_prompt_rows, prompt_sizes
from astrai.extension import ops
from astrai.kvcache import max_decode_splits, prefill_workspace_size
from astrai.models.experts import is_grouped
from astrai.sampling.device_edits import edit_list_bytes

if TYPE_CHECKING:
    from astrai.models import CausalLM

__all__ = ["MemoryLedger", "NotEnoughMemoryError", "StepLimits", "gpu_ledger"]

_GIB = 2**30
_GRAPH_BYTES_PER_KERNEL = 2048  # device memory of a captured kernel node, measured on an H200
_KERNELS_PER_MIXTURE = 12  # of a layer with grouped products and a shared expert
_KERNELS_PER_EXPERT = 5  # where every row goes through every expert, see `experts.mix_densely`
_LIBRARY_BYTES = 192 << 20  # workspaces of cuBLAS and code that is loaded at first use
_SLACK = 1.1  # the allocator rounds


class NotEnoughMemoryError(ValueError):
    """The card cannot hold the KV pool that these limits need; the message says what would fit."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step of an engine."""

    max_batch_size: int
    max_seq_len: int
    prefill_chunk: int | None  # None is without limit
    page_size: int
    has_graphs: bool
    splits_prefill: bool = True  # see `PagePool`


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Bytes, by use."""

    total: int  # of the card
    utilization: float
    in_use: int  # before the engine: weights, context, others
    weights: int  # part of in_use
    step: int  # activations and logits of the largest step
    graphs: int
    sampling: int
    decode_workspace: int
    prefill_workspace: int
    request_table: int
    kv_pool: int
    kv_tokens: int

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by use, without what others have."""
        return {
            "weights": self.weights,
            "kv_pool": self.kv_pool,
            "step": self.step,
            "graphs": self.graphs,
            "sampling": self.sampling,
            "decode_workspace": self.decode_workspace,
            "prefill_workspace": self.prefill_workspace,
            "request_table": self.request_table,
        }

    def lines(self) -> list[str]:
        """The ledger as text, one use a line."""
        used = {**self.parts, "context and others": self.in_use - self.weights}
        used["free"] = self.total - sum(used.values())
        return [f"{name.replace('_', ' ')} {size / _GIB:.2f} GiB" for name, size in used.items()]


def gpu_ledger(
    model: CausalLM,
    limits: StepLimits,
    utilization: float,
    kv_tokens: int | None = None,
    memory: tuple[int, int] | None = None,
) -> MemoryLedger:
    """The ledger of an engine whose weights are in their place.

    utilization: share of the card that may be in use. kv_tokens: slots asked for; None is what the
    rest holds, at most max_batch_size full sequences. memory: (bytes in use, bytes in all), None
    asks the driver. Raises NotEnoughMemoryError when the slots asked for, or those of one full
    sequence, do not fit.
    """
    in_use, total = _in_use(model.device) if memory is None else memory
    parts = _parts(model, limits)
    rest = int(total * utilization) - in_use - sum(parts.values())
    token_bytes = kv_token_bytes(model)
    # One slot more than requests can own, see `PagePool`.
    affordable = max(0, rest // token_bytes - 1) // limits.page_size * limits.page_size
    n_pages = -(-limits.max_seq_len // limits.page_size) * limits.max_batch_size
    wanted = n_pages * limits.page_size if kv_tokens is None else kv_tokens
    needed = limits.max_seq_len if kv_tokens is None else kv_tokens
    if affordable < needed:
        raise NotEnoughMemoryError(
            _refusal(needed, affordable, token_bytes, total, utilization, in_use, parts)
        )
    n_tokens = min(wanted, affordable)
    return MemoryLedger(
        total=total,
        utilization=utilization,
        in_use=in_use,
        weights=sum(weight.nbytes for weight in model.parameters()),
        kv_pool=(n_tokens + 1) * token_bytes,
        kv_tokens=n_tokens,
        **parts,
    )


def kv_token_bytes(model: CausalLM) -> int:
    config = model.config
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * model.dtype.itemsize


def _in_use(device: torch.device) -> tuple[int, int]:
    """(bytes in use, bytes in all). What torch keeps for reuse counts as free."""
    free, total = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return total - free - kept, total


def _parts(model: CausalLM, limits: StepLimits) -> dict[str, int]:
    config, item = model.config, model.dtype.itemsize
    n_rows = limits.max_batch_size
    chunk = limits.prefill_chunk or limits.max_seq_len * n_rows
    head_bytes = config.n_heads * config.head_dim
    splits = max_decode_splits(n_rows, limits.max_seq_len)
    logits = n_rows * config.vocab_size * item
    sizes = graph_sizes(n_rows) if limits.has_graphs else []
    n_prompt_rows = max_prompt_rows(n_rows, limits.prefill_chunk)
    # Rows that are computed by single launches: behind the last attention, or of larger steps.
    n_single_rows = n_rows if chunk + n_rows <= n_prompt_rows else chunk + n_rows
    n_kernels = 10 * config.n_layers + 16 + _expert_kernels(model)
    prompts = prompt_sizes(n_prompt_rows)
    n_graphs = len(sizes) * N_GRAPH_KINDS + len(prompts)
    # Each graph of prompts may allocate anew beside its workspace, and does so for experts alone.
    n_expert_rows = sum(prompts) if limits.has_graphs else n_prompt_rows
    return {
        "step": _LIBRARY_BYTES
        + int(_SLACK * (_row_bytes(model) * n_single_rows + logits))
        + _kept_row_bytes(model) * n_prompt_rows
        + int(_SLACK * _expert_row_bytes(model)[1] * n_expert_rows),
        "graphs": (
            int(_SLACK * (_row_bytes(model) * n_rows + logits))
            + logits  # where rows are drawn outside of the graph
            + n_graphs * n_kernels * _GRAPH_BYTES_PER_KERNEL
        )
        if sizes
        else 0,
        "sampling": ops.sample_workspace_bytes(n_rows, config.vocab_size)
        + n_rows * edit_list_bytes(config.vocab_size, limits.max_seq_len),
        "decode_workspace": splits * config.n_heads * (config.head_dim + 2) * 4
        + n_rows * head_bytes * item,
        "prefill_workspace": 4
        * prefill_workspace_size(
            config.n_heads, config.n_kv_heads, config.head_dim, model.dtype, model.device
        )
        if limits.splits_prefill
        else 0,
        "request_table": 4 * (n_rows + 1) * limits.max_seq_len,
    }


def _expert_kernels(model: CausalLM) -> int:
    """Kernels of the experts of all layers together."""
    experts = model.config.experts
    if experts is None:
        return 0
    each = _KERNELS_PER_MIXTURE
    if not is_grouped(experts, model.config.hidden_size, model.dtype):
        each += _KERNELS_PER_EXPERT * experts.n_experts
    return each * sum(map(experts.is_sparse, range(model.config.n_layers)))


def _row_bytes(model: CausalLM) -> int:
    """Activations of one token where most of them are alive at once: in the attention, or in the
    MLP. Beside them the residual stream, its norm and the index arrays."""
    config, item = model.config, model.dtype.itemsize
    q = config.n_heads * config.head_dim
    qkv = q + 2 * config.n_kv_heads * config.head_dim
    attention = (qkv + q + config.hidden_size) * item
    mlp = (3 * config.intermediate_size + config.hidden_size) * item
    most = max(attention, mlp, sum(_expert_row_bytes(model)))
    return 2 * config.hidden_size * item + most + 64


def _expert_row_bytes(model: CausalLM) -> tuple[int, int]:
    """Bytes of one token in a layer with experts: of the grouped products, which have a place in
    the `Workspace`, and of what is allocated beside them or in their stead."""
    config, item, experts = model.config, model.dtype.itemsize, model.config.experts
    if experts is None:
        return 0, 0
    hidden, size = config.hidden_size, experts.intermediate_size
    allocated = hidden * item  # the sum of the experts
    if experts.shared_size is not None:
        allocated += (3 * experts.shared_size + hidden) * item
    if is_grouped(experts, hidden, model.dtype):
        routing = experts.n_experts * item + experts.n_active * 32
        return experts.n_active * (size + hidden) * item, routing + allocated
    routing = experts.n_experts * 24  # shares, sorted shares and their int64 indices
    return 0, routing + allocated + (3 * size + hidden) * item + 8 * hidden


def _kept_row_bytes(model: CausalLM) -> int:
    """All that is kept for one token of a step with chunks of prompts, see `PromptRunner`."""
    config = model.config
    q = config.n_heads * config.head_dim
    heads = 2 * q + 2 * config.n_kv_heads * config.head_dim
    n_values = 3 * config.hidden_size + heads + 3 * config.intermediate_size
    return n_values * model.dtype.itemsize + _expert_row_bytes(model)[0] + 3 * 4


def _refusal(
    needed: int,
    affordable: int,
    token_bytes: int,
    total: int,
    utilization: float,
    in_use: int,
    parts: dict[str, int],
) -> str:
    uses = ", ".join(f"{name.replace('_', ' ')} {size / _GIB:.2f}" for name, size in parts.items())
    return (
        f"the KV pool needs {needed} tokens ({needed * token_bytes / _GIB:.2f} GiB), but "
        f"{utilization:g} of the card's {total / _GIB:.2f} GiB leaves {affordable} tokens beside "
        f"{in_use / _GIB:.2f} GiB in use and, in GiB: {uses}. What would fit: max_seq_len or "
        f"kv_tokens up to {affordable}; or lower prefill_chunk and max_batch_size, or raise "
        "gpu_memory_utilization"
    )
