"""Types of the compiled extension, by hand; stubtest compares them with the module.

Contracts are in the C++ headers of the same names (cpp/include/astrai)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypedDict, final, overload

import numpy as np
import numpy.typing as npt
import torch
from _typeshed import structseq
from torch import Tensor
from typing_extensions import Buffer, Never

__version__: str
PYBIND11_INTERNALS_ID: str  # extension modules with the same one can take and return these types

class Error(RuntimeError): ...
class KernelUnavailableError(RuntimeError): ...
class _Pybind11Type(type): ...  # the metaclass of bound classes

# A list of integers, or a one-dimensional int32 or int64 buffer (numpy, array, memoryview).
_Ints = Sequence[int] | Buffer
# Writable: numpy's arrays are a Buffer to type checkers from Python 3.12 on only.
_Int32Memory = Buffer | npt.NDArray[np.int32]

# ---- token_table.h, token_text.h
@final
class TokenTable(metaclass=_Pybind11Type):
    """The bytes of every token id."""

    @overload
    def __init__(self, pieces: Sequence[bytes], special: bytes) -> None: ...
    @overload
    def __init__(self, pieces: Sequence[bytes], special: Sequence[bool]) -> None: ...
    def __len__(self) -> int: ...
    def piece(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...

@final
class TextEvent(
    structseq[int | str | None],
    tuple[int, str, int, Literal["stop", "length"] | None, str | None, int | None],
):
    """What one stream has to say after a step."""

    __match_args__: Final = ("handle", "text", "n_tokens", "finish", "stop_string", "stop_token")
    @property
    def handle(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def finish(self) -> Literal["stop", "length"] | None: ...
    @property
    def stop_string(self) -> str | None: ...
    @property
    def stop_token(self) -> int | None: ...

@final
class TextStreams(metaclass=_Pybind11Type):
    """The texts of all running requests."""

    def __init__(self, table: TokenTable) -> None: ...
    def open(
        self,
        stop: Sequence[str],
        stop_ids: _Ints,
        max_tokens: int,
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special: bool = True,
        strip_leading_space: bool = False,
        shown_ids: _Ints = (),
    ) -> int: ...
    def push_batch(self, handles: _Ints, token_ids: _Ints) -> list[TextEvent]: ...
    def push_texts(self, handles: _Ints, token_ids: _Ints) -> tuple[list[str], list[TextEvent]]: ...
    def finish(self, handle: int) -> str: ...
    def text(self, handle: int) -> str: ...
    def close(self, handle: int) -> None: ...
    @property
    def n_open(self) -> int: ...

# ---- http_chunks.h
def send_http_chunks(fds: list[int], payloads: list[bytes]) -> list[tuple[int, bytes]]: ...

# ---- allocator.h, req_to_token_pool.h
@final
class Int32Array(Buffer):
    """An int32 vector, seen by Python as a buffer."""

    def __init__(self, values: _Ints) -> None: ...
    def __len__(self) -> int: ...
    def tolist(self) -> list[int]: ...

@final
class Allocator(metaclass=_Pybind11Type):
    """Pages of a pool: free, held with a ref count, or cached."""

    def __init__(self, n_pages: int) -> None: ...
    def set_on_evict(self, on_evict: Callable[[int], object] | None) -> None: ...
    def alloc(self) -> int: ...
    def alloc_many(self, n: int) -> Int32Array | None: ...
    def free(self, page: int, keep_cached: bool = False) -> None: ...
    def free_many(self, pages: _Ints) -> None: ...
    def inc_ref(self, page: int) -> None: ...
    def ref_count(self, page: int) -> int: ...
    def touch(self, page: int) -> None: ...
    @property
    def n_pages(self) -> int: ...
    @property
    def n_free(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def n_held(self) -> int: ...
    def check_integrity(self) -> None: ...
    def state_bytes(self) -> int: ...

@final
class ReqToTokenPool(Buffer):
    """The table request row -> token slot of each position."""

    def __init__(self, size: int, max_context_len: int) -> None: ...
    def alloc(self, n: int) -> list[int] | None: ...
    def free(self, req_indices: _Ints) -> None: ...
    def write(self, req_idx: int, start: int, slots: _Ints) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def max_context_len(self) -> int: ...
    @property
    def n_free(self) -> int: ...
    @property
    def req_to_token(self) -> memoryview: ...  # [size, max_context_len] int32, no copy

# ---- radix_cache.h
_MissReason = Literal[
    "end_of_prompt",
    "token_differs",
    "page_boundary",
    "evicted",
    "other_namespace",
    "empty_cache",
    "disabled",
]

class _RadixPage(TypedDict):
    page: int
    parent: int  # page index, -1 for the first page of a prompt
    n_tokens: int
    ref_count: int
    hash: int
    namespace: str

class _RadixEdge(TypedDict):
    node: int
    parent: int  # node, -1 for the first edge of a prompt
    ref_count: int
    n_tokens: int
    token_ids: list[int]  # the first ones of the edge
    namespace: str

def page_hash(token_ids: _Ints, page_idx: int, page_size: int, parent: int = 0) -> int: ...

@final
class RadixHold(metaclass=_Pybind11Type):
    """A prefix held in a RadixCache until release()."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...  # made by C++ only
    @property
    def n_pages(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def miss_reason(self) -> _MissReason: ...
    @property
    def miss_position(self) -> int: ...

@final
class RadixCache(metaclass=_Pybind11Type):
    """Exact, page-aligned prefix matching over token ids."""

    def __init__(self, page_size: int, hash_bits: int = 64) -> None: ...
    def lookup(self, token_ids: _Ints, namespace: str = "") -> list[int]: ...
    def match(self, token_ids: _Ints, namespace: str = "") -> RadixHold: ...
    def insert(self, hold: RadixHold, token_ids: _Ints, pages: _Ints) -> int: ...
    def release(self, hold: RadixHold) -> None: ...
    def record(
        self,
        page_idx: int,
        token_ids: _Ints,
        logical_page_idx: int,
        namespace: str = "",
    ) -> bool: ...
    def evict(self, page_idx: int) -> list[int]: ...
    def evict_lru(self, n_pages: int) -> Int32Array: ...
    def has_page(self, page_idx: int) -> bool: ...
    def ref_count(self, page_idx: int) -> int: ...
    def hash_of(self, page_idx: int) -> int: ...
    def snapshot(self, max_pages: int = 4096) -> list[_RadixPage]: ...
    def edges(self, max_edges: int = 256, max_ids: int = 64) -> list[_RadixEdge]: ...
    @property
    def page_size(self) -> int: ...
    @property
    def n_pages(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def n_edges(self) -> int: ...
    @property
    def n_namespaces(self) -> int: ...
    def check_integrity(self) -> None: ...
    def state_bytes(self) -> int: ...

# ---- page_pool.h
@final
class Admission(metaclass=_Pybind11Type):
    """A row for a prompt, and how much of it was cached."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...  # made by C++ only
    @property
    def req_idx(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def miss_reason(self) -> _MissReason: ...
    @property
    def miss_position(self) -> int: ...

@final
class DirtySpan(metaclass=_Pybind11Type):
    """Positions of a table row written since take_dirty()."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...  # made by C++ only
    @property
    def req_idx(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...

@final
class DirtySpans(metaclass=_Pybind11Type):
    """Spans of table rows, one a row."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...  # made by C++ only
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[DirtySpan]: ...

@final
class PagePool(Buffer):
    """Host bookkeeping of the KV pool, contiguous or paged."""

    def __init__(
        self,
        max_batch_size: int,
        max_seq_len: int,
        page_size: int = 1,
        n_tokens: int | None = None,
    ) -> None: ...
    def admit(self, token_ids: _Ints, namespace: str = "") -> Admission | None: ...
    def can_admit(self, n_tokens: int) -> bool: ...
    def fits(self, n_tokens: int) -> bool: ...
    def extend(self, req_idx: int, new_len: int) -> bool: ...
    def extend_batch(self, req_indices: _Ints, new_lens: _Ints) -> int: ...
    def append(self, req_idx: int, token_id: int) -> None: ...
    def append_batch(self, req_indices: _Ints, token_ids: _Ints) -> None: ...
    def append_pending(self, req_indices: _Ints) -> None: ...
    def settle(self, req_indices: _Ints, token_ids: _Ints) -> None: ...
    def commit(self, req_idx: int, n_written: int) -> int: ...
    def release(self, req_idx: int) -> None: ...
    def flush_cache(self) -> int: ...
    @property
    def contiguous(self) -> bool: ...
    @property
    def page_size(self) -> int: ...
    @property
    def max_batch_size(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def n_pages(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def reserved_slot(self) -> int: ...
    @property
    def n_free_pages(self) -> int: ...
    @property
    def n_cached_pages(self) -> int: ...
    @property
    def n_held_pages(self) -> int: ...
    @property
    def n_edges(self) -> int: ...
    @property
    def n_free_rows(self) -> int: ...
    def ref_count(self, page: int) -> int: ...
    def n_slots(self, req_idx: int) -> int: ...
    def n_tokens_of(self, req_idx: int) -> int: ...
    def tokens(self, req_idx: int) -> list[int]: ...
    def pages(self, req_idx: int) -> list[int]: ...
    def take_dirty(self) -> DirtySpans: ...
    def stats(self) -> dict[str, int]: ...
    def snapshot(self, max_pages: int = 4096) -> list[_RadixPage]: ...
    def edges(self, max_edges: int = 256, max_ids: int = 64) -> list[_RadixEdge]: ...
    def check_integrity(self) -> None: ...
    @property
    def table(self) -> memoryview: ...  # [max_batch_size, max_seq_len] int32, no copy

# ---- batch_plan.h
@final
class Layout(metaclass=_Pybind11Type):
    """Where the sections of one step's plan lie in its staging buffer, in int32 elements."""

    def __init__(self, *args: Never, **kwargs: Never) -> None: ...  # made by C++ only
    @property
    def sections(self) -> dict[str, tuple[int, int]]: ...  # name -> (offset, length)
    @property
    def n_rows(self) -> int: ...
    @property
    def n_decode(self) -> int: ...
    @property
    def total_q(self) -> int: ...
    @property
    def max_len(self) -> int: ...
    @property
    def max_q_len(self) -> int: ...
    @property
    def n_tiles(self) -> int: ...
    @property
    def n_splits(self) -> int: ...
    @property
    def n_units(self) -> int: ...
    @property
    def has_shared(self) -> bool: ...
    @property
    def n_int32(self) -> int: ...  # used length of the staging buffer
    @property
    def dirty_spans(self) -> DirtySpans: ...  # table entries written since the last plan

@final
class BatchPlan(metaclass=_Pybind11Type):
    """Writes every index array of a step into one staging buffer."""

    def __init__(
        self, pool: PagePool, max_total_q: int, max_batch_size: int, split_len: int = 512
    ) -> None: ...
    @staticmethod
    def staging_size(max_total_q: int, max_batch_size: int, max_splits: int) -> int: ...
    def build(
        self,
        req_indices: _Ints,
        starts: _Ints,
        q_lens: _Ints,
        *,
        staging: _Int32Memory,
        q_tile_rows: int = 64,
        pad_to: int | None = None,
        n_decode: int | None = None,
        stack_len: int = 1,
    ) -> Layout: ...

# ---- table_update.h
def n_dirty_entries(spans: DirtySpans) -> int: ...
def write_table_update(pool: PagePool, spans: DirtySpans, out: _Int32Memory) -> None: ...

# ---- pinned_buffer.h
@final
class PinnedBuffer(Buffer):
    """Page-locked bytes, for copies that nobody waits for."""

    def __init__(self, n_bytes: int, device_idx: int = 0) -> None: ...

# ---- tensors: a torch tensor, or for CPU operations an array with a buffer (tensor_view.h)
_Tensor = Tensor | Buffer

# ---- ops.h: what was built, and the GPU operations; stream None: the first tensor's current one
BUILT_WITH_CUDA: bool
CUDA_REASON: str  # why kernels were or were not compiled

def compiled_instances() -> dict[str, list[tuple[str, int]]]: ...
def cuda_archs() -> list[str]: ...
def prefill_q_tile_rows(
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype | str,
    device: torch.device | int,
) -> int: ...
def rotary_emb(x: Tensor, freqs: Tensor, out: Tensor, stream: int | None = None) -> None: ...
def attn_paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    kv_indptr: Tensor,
    split_indptr: Tensor,
    o_part: Tensor,
    ml_part: Tensor,
    out: Tensor,
    new_k: Tensor | None = None,
    new_v: Tensor | None = None,
    lse: Tensor | None = None,
    sm_scale: float = 1.0,
    soft_cap: float = 0.0,
    window: int = 0,
    split_len: int = 512,
    members: Tensor | None = None,
    n_units: Tensor | None = None,
    units: Tensor | None = None,
    stack_len: int = 1,
    is_plan_settled: bool = False,
    stream: int | None = None,
) -> None: ...
def decode_stack_len(n_heads: int, n_kv_heads: int, head_dim: int) -> int: ...
def attn_paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    kv_indptr: Tensor,
    qo_indptr: Tensor,
    q_tile_to_batch: Tensor,
    q_tile_to_index: Tensor,
    out: Tensor,
    is_causal: bool,
    sm_scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    q_tile_rows: int = 0,
    lse: Tensor | None = None,
    workspace: Tensor | None = None,
    splits: tuple[int, int, int] | None = None,
    stream: int | None = None,
) -> None: ...
def plan_prefill_splits(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    q_tile_rows: int,
    n_heads: int,
    n_kv_heads: int,
    window: int,
    n_multiprocessors: int,
) -> tuple[int, int, int]: ...
def prefill_workspace_size(
    q_tile_rows: int, n_heads: int, n_kv_heads: int, head_dim: int, n_multiprocessors: int
) -> int: ...
def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out_cache_loc: Tensor,
    stream: int | None = None,
) -> None: ...

# ---- moe_ops.h, moe_tiles.h
def moe_max_tiles(n_pairs: int, n_experts: int) -> int: ...
def moe_tile_rows(n_pairs: int, n_experts: int) -> int: ...
def moe_gate_up_row(tile_row: int, first_column: int, n_columns: int) -> int: ...
def moe_route(
    logits: Tensor, ids: Tensor, weights: Tensor, norm_topk_prob: bool, stream: int | None = None
) -> None: ...
def moe_sort(
    ids: Tensor, order: Tensor, tiles: Tensor, n_experts: int, stream: int | None = None
) -> None: ...
def moe_gate_up(
    x: Tensor,
    gate_up: Tensor,
    order: Tensor,
    tiles: Tensor,
    gated: Tensor,
    stream: int | None = None,
) -> None: ...
def moe_down(
    gated: Tensor,
    down: Tensor,
    order: Tensor,
    tiles: Tensor,
    parts: Tensor,
    stream: int | None = None,
) -> None: ...
def moe_combine(parts: Tensor, weights: Tensor, out: Tensor, stream: int | None = None) -> None: ...

# ---- fused_ops.h
def rms_norm(
    x: Tensor, weight: Tensor, out: Tensor, eps: float, stream: int | None = None
) -> None: ...
def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    out: Tensor,
    eps: float,
    stream: int | None = None,
) -> None: ...
def silu_mul(gate_up: Tensor, out: Tensor, stream: int | None = None) -> None: ...
def gelu_mul(gate_up: Tensor, out: Tensor, stream: int | None = None) -> None: ...
def skinny_linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    output: str = "store",
    stream: int | None = None,
) -> None: ...
def skinny_linear_max_rows(row_len: int) -> int: ...
def narrow_linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    output: str = "store",
    stream: int | None = None,
) -> None: ...
def embedding(ids: Tensor, table: Tensor, out: Tensor, stream: int | None = None) -> None: ...
def rotary_store_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    freqs: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out_cache_loc: Tensor,
    q_out: Tensor,
    positions: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    stream: int | None = None,
) -> None: ...

# ---- sampling_ops.h
def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    token_ids: Tensor,
    is_faulty: Tensor,
    workspace: Tensor,
    edits: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | None = None,
    bitmask: Tensor | None = None,
    bitmask_rows: Tensor | None = None,
    has_wide_rows: bool = True,
    stream: int | None = None,
) -> None: ...
def sample_workspace_bytes(batch: int, vocab_size: int) -> int: ...
def keep_drawn(
    token_ids: Tensor,
    is_faulty: Tensor,
    rows: Tensor,
    last_ids: Tensor,
    edits: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | None = None,
    stream: int | None = None,
) -> None: ...
def top_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    chosen: Tensor,
    top_ids: Tensor,
    logprobs: Tensor,
    workspace: Tensor,
    stream: int | None = None,
) -> None: ...
def top_logprobs_workspace_bytes(batch: int, vocab_size: int) -> int: ...

# ---- all_finite.h
def all_finite(values: _Tensor) -> bool:
    """Whether no value is NaN or infinite: float32, bfloat16 or float16, any shape and strides."""

# ---- cpu_isa.h, cpu_linear.h, thread_pool.h
CPU_LINEAR_MAX_ROWS: int  # the rows cpu_linear is made for; any number is accepted

def cpu_isas() -> list[str]: ...
def cpu_threads(n: int | None = None) -> int:
    """Threads of all CPU operations, the caller's included; pass torch.get_num_threads()."""

def cpu_linear(
    x: _Tensor, weight: _Tensor, out: _Tensor, bias: _Tensor | None = None, isa: str = ""
) -> None:
    """out [M, N] = x [M, K] @ weight [N, K].T + bias [N], contiguous CPU tensors.

    float32 throughout, or bfloat16 weight with bfloat16 or float32 x and out. Sums are float32."""

# ---- dequantize.h
BLOCK_FORMATS: dict[str, tuple[int, int]]  # name -> (values, bytes) of a block

def dequantize(
    packed: _Tensor | npt.NDArray[np.uint8],
    format: str,
    out: _Tensor,
    row_index: _Tensor | None = None,
) -> None:
    """Write the values of packed rows, uint8 [N, B], into out [N, values of B bytes].

    out: float32, bfloat16 or float16. row_index: int64 [N], row r goes to out[row_index[r]]."""

# ---- cpu_attention.h, cpu_rowwise.h: all float32 or all bfloat16
def cpu_paged_decode(
    q: _Tensor,
    k_cache: _Tensor,
    v_cache: _Tensor,
    req_to_token: _Tensor,
    req_pool_indices: _Tensor,
    kv_indptr: _Tensor,
    out: _Tensor,
    new_k: _Tensor | None = None,
    new_v: _Tensor | None = None,
    *,
    sm_scale: float,
    soft_cap: float = 0.0,
    isa: str = "",
) -> None:
    """Write new_k, new_v to each request's last slot, then attend q [B, n_heads, D] over its KV.

    Caches are one layer's [n_slots, n_kv_heads, D]; index tensors int32, as in KVCache. q, new_k
    and new_v may be slices of one qkv tensor: any stride from row to row. D % 16 == 0."""

def cpu_rms_norm(
    x: _Tensor,
    weight: _Tensor,
    out: _Tensor,
    eps: float,
    residual: _Tensor | None = None,
    isa: str = "",
) -> None:
    """out = rms_norm(x) * weight; with residual: residual += x, out = rms_norm(residual) * weight.

    x, out, residual: [T, N] contiguous; weight: [N]."""

def cpu_silu_mul(gate_up: _Tensor, out: _Tensor, isa: str = "") -> None:
    """out [T, N] = silu(gate_up[:, :N]) * gate_up[:, N:], contiguous."""

def cpu_gelu_mul(gate_up: _Tensor, out: _Tensor, isa: str = "") -> None:
    """The same with the tanh form of GELU."""

def cpu_rotary_emb(x: _Tensor, freqs: _Tensor, out: _Tensor) -> None:
    """Rotate x [T, H, D] (any stride between tokens) by freqs float32 [T, D/2, 2] into out."""
