"""What one forward pass sees of the KV cache: plain data, no methods.

`KVCache` is built once per step by `PagePool.bind_tasks` or `PagePool.plan_step` and read by every
attention layer of that step. `StepBatch` adds the model's own inputs. The index tensors of a step
are views of a buffer that belongs to that step alone, so they stay readable after the next step is
planned; the pool and the table they point into move on.

A step is a ragged batch. Request i has q_len[i] new tokens, the last of its seq_lens[i] tokens.
Their packed rows (in q, k, v and out_cache_loc) are qo_indptr[i] up to qo_indptr[i + 1]. The first
n_decode requests decode; what follows are chunks of prompts, of one token at times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)  # equality of tensors has no one meaning
class KVCache:
    """Buffers and index arrays of one step. Index tensors are int32 on the pool's device."""

    # [n_layers, size, n_kv_heads, head_dim]; keys have RoPE applied; the last slot is reserved.
    k_buffer: Tensor = field(repr=False)
    v_buffer: Tensor = field(repr=False)
    req_to_token: Tensor = field(repr=False)  # [num_reqs, max_ctx_len] token slot of each position
    req_pool_indices: Tensor  # [batch] row of req_to_token
    seq_lens: Tensor  # [batch] tokens after this step
    out_cache_loc: Tensor  # [total_q] slot each new token is written to
    max_len: int  # max(seq_lens)
    kv_indptr: Tensor  # [batch + 1] prefix sum of seq_lens
    qo_indptr: Tensor  # [batch + 1] prefix sum of q_lens
    # [num_q_tiles] request of each query tile, and the tile's index in its request. Decoding
    # requests have none; None when all decode.
    q_tile_to_batch: Tensor | None
    q_tile_to_index: Tensor | None
    # Split-KV workspace, packed by split: float32 [max_splits, n_heads, head_dim], float32
    # [max_splits, n_heads, 2], and [max_batch_size, n_heads, head_dim] in the pool's dtype.
    # None when the pool was made without n_heads.
    decode_o_part: Tensor | None = field(repr=False)
    decode_ml_part: Tensor | None = field(repr=False)
    decode_out: Tensor | None = field(repr=False)
    # [total_q, n_heads, head_dim] in the pool's dtype: where "prefill" writes; None: it allocates.
    prefill_out: Tensor | None = field(default=None, repr=False)
    # float32 workspace for "prefill" to spread the keys of a few rows over the device; None: a row
    # has the same bits in every batch and chunk.
    prefill_workspace: Tensor | None = field(default=None, repr=False)
    n_multiprocessors: int = 1  # of the pool's device
    decode_split_indptr: Tensor | None = None  # [n_decode + 1] prefix sum of KV splits
    # The decode kernel's work, which requests that share slots share (astrai/decode_runs.h):
    # [n_decode, 4], [2] and [n_units, 2]; None when less than two requests decode.
    decode_members: Tensor | None = None
    decode_n_units: Tensor | None = None
    decode_units: Tensor | None = None
    decode_stack_len: int = 1  # requests whose rows are attended together where they share slots
    n_decode: int = 0  # requests, the first ones, with one new token for the decode kernel
    q_tile_rows: int | None = None  # query rows of a tile; None: what the prefill kernel asks for
    # Positions [i * page_size, (i + 1) * page_size) of a request lie in one page of the pool: slots
    # [p * page_size, (p + 1) * page_size), in order.
    page_size: int = 1
    max_q_len: int = 1
    seq_lens_cpu: tuple[int, ...] | None = None  # lengths on the host: read without synchronising
    q_lens_cpu: tuple[int, ...] | None = None
    scratch: dict[str, Any] = field(default_factory=dict, repr=False)  # backends' memo, one step


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """Everything `CausalLM.forward` needs for one step."""

    input_ids: Tensor  # [total_q] int64, or int32 in a decode step at fixed addresses
    position_ids: Tensor  # [total_q] likewise
    logits_indices: Tensor  # [batch] likewise: packed row of each request's last new token
    kv_cache: KVCache
    is_decode: bool  # every request decodes
