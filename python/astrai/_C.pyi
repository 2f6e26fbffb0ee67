"""Types of the compiled extension, by hand; stubtest compares them with the module.

Contracts are in the C++ headers of the same names (cpp/include/astrai)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, final, overload

import torch
from _typeshed import structseq
from torch import Tensor
from typing_extensions import Buffer

__version__: str

class Error(RuntimeError): ...
class KernelUnavailableError(RuntimeError): ...

# A list of integers, or a one-dimensional int32/int64 buffer (numpy array, array.array, memoryview).
_Ints = Sequence[int] | Buffer

# ---- token_table.h, token_text.h
@final
class TokenTable:
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
class TextStreams:
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
    ) -> int: ...
    def push_batch(self, handles: _Ints, token_ids: _Ints) -> list[TextEvent]: ...
    def finish(self, handle: int) -> str: ...
    def text(self, handle: int) -> str: ...
    def close(self, handle: int) -> None: ...
    @property
    def n_open(self) -> int: ...

# ---- batch_plan.h
@final
class Layout:
    """Where the sections of one step's plan lie in its staging buffer, in int32 elements."""

    @property
    def sections(self) -> dict[str, tuple[int, int]]: ...  # name -> (offset, length)
    @property
    def n_rows(self) -> int: ...
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
    def n_int32(self) -> int: ...  # used length of the staging buffer
    @property
    def dirty_spans(
        self,
    ) -> list[tuple[int, int, int]]: ...  # (req_idx, begin, end) of table entries

@final
class BatchPlan:
    """Writes every index array of a step into one staging buffer."""

    def __init__(
        self, pool: PagePool, max_total_q: int, max_batch_size: int, split_len: int = 512
    ) -> None: ...
    @staticmethod
    def staging_size(max_total_q: int, max_batch_size: int) -> int: ...
    def build(
        self,
        req_indices: _Ints,
        starts: _Ints,
        q_lens: _Ints,
        *,
        staging: Buffer,
        q_tile_rows: int = 64,
        pad_to: int | None = None,
    ) -> Layout: ...

# ---- tensors: a torch tensor, or for CPU operations an array with a buffer (tensor_view.h)
_Tensor = Tensor | Buffer

# ---- ops.h: what was built, and the GPU operations; stream None is the current one of the first tensor
BUILT_WITH_CUDA: bool
CUDA_REASON: str  # why kernels were or were not compiled

def compiled_instances() -> dict[str, list[tuple[str, int]]]: ...
def cuda_archs() -> list[str]: ...
def prefill_q_tile_rows(
    n_heads: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype | str, device: torch.device | int
) -> int: ...
def rotary_emb(x: Tensor, freqs: Tensor, out: Tensor, stream: int | None = None) -> None: ...
def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out_cache_loc: Tensor,
    stream: int | None = None,
) -> None: ...

# ---- cpu_isa.h, cpu_linear.h, thread_pool.h
CPU_LINEAR_MAX_ROWS: int  # rows up to which cpu_linear is the better choice than torch

def cpu_isas() -> list[str]: ...
def cpu_threads(n: int | None = None) -> int:
    """Threads of all CPU operations, the caller's included; pass torch.get_num_threads()."""

def cpu_linear(
    x: _Tensor, weight: _Tensor, out: _Tensor, bias: _Tensor | None = None, isa: str = ""
) -> None:
    """out [M, N] = x [M, K] @ weight [N, K].T + bias [N], contiguous CPU tensors.

    float32 throughout, or bfloat16 weight with bfloat16 or float32 x and out. Sums are float32."""

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

def cpu_rotary_emb(x: _Tensor, freqs: _Tensor, out: _Tensor) -> None:
    """Rotate x [T, H, D] (any stride between tokens) by freqs float32 [T, D/2, 2] into out."""
