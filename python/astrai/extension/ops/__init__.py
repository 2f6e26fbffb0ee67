"""Direct wrappers of the compiled CUDA kernels: they raise where one is missing, never fall back.

Most callers want `astrai.extension.attention` and `apply_rotary_emb`, which choose and fall back.
"""

from __future__ import annotations

from astrai._C import KernelUnavailableError

from ._availability import KERNEL_NAMES, is_available, unavailable_reason
from .attn_paged_decode import attn_paged_decode
from .attn_paged_prefill import attn_paged_prefill
from .embedding import embedding
from .gated_act import gelu_mul, silu_mul
from .keep_drawn import keep_drawn
from .moe import moe_combine, moe_down, moe_gate_up, moe_route, moe_sort
from .narrow_linear import narrow_linear
from .rms_norm import add_rms_norm, rms_norm
from .rotary_emb import rotary_emb
from .rotary_store_kv import rotary_store_kv
from .sample import LogitEdits, sample, sample_workspace_bytes
from .skinny_linear import skinny_linear
from .store_kv import store_kv
from .top_logprobs import top_logprobs, top_logprobs_workspace_bytes

__all__ = [
    "KERNEL_NAMES",
    "KernelUnavailableError",
    "LogitEdits",
    "add_rms_norm",
    "attn_paged_decode",
    "attn_paged_prefill",
    "embedding",
    "gelu_mul",
    "is_available",
    "keep_drawn",
    "moe_combine",
    "moe_down",
    "moe_gate_up",
    "moe_route",
    "moe_sort",
    "narrow_linear",
    "rms_norm",
    "rotary_emb",
    "rotary_store_kv",
    "sample",
    "sample_workspace_bytes",
    "silu_mul",
    "skinny_linear",
    "store_kv",
    "top_logprobs",
    "top_logprobs_workspace_bytes",
    "unavailable_reason",
]
