"""KV cache: storage, request table, page allocation and prefix sharing.

`PagePool` is the device-side pool; the bookkeeping classes are the compiled ones of `astrai._C`.
"""

from __future__ import annotations

from astrai._C import Allocator, RadixCache, ReqToTokenPool, page_hash

from .cache import KVCache, StepBatch
from .decode_steps import DecodeSteps, FixedStep
from .host_staging import HostStaging
from .pool import PagePool, max_decode_splits, prefill_workspace_size
from .row_requests import rows_as_requests
from .storage import KVStorage

__all__ = [
    "Allocator",
    "DecodeSteps",
    "FixedStep",
    "HostStaging",
    "KVCache",
    "KVStorage",
    "PagePool",
    "RadixCache",
    "ReqToTokenPool",
    "StepBatch",
    "max_decode_splits",
    "page_hash",
    "prefill_workspace_size",
    "rows_as_requests",
]
