"""Device memory of the KV pool. No bookkeeping: `_C.PagePool` decides who owns which slot."""

from __future__ import annotations

import torch


class KVStorage:
    """Key and value tensors of all layers, addressed by token slot.

    size: token slots, the reserved one included. k_buffer and v_buffer are
    [n_layers, size, n_kv_heads, head_dim] and not initialised: a slot holds garbage until a forward
    writes it, and readers must not let that reach a result.
    """

    def __init__(
        self,
        size: int,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        shape = (n_layers, size, n_kv_heads, head_dim)
        if min(shape) < 1:
            raise ValueError(
                f"KVStorage: (n_layers, size, n_kv_heads, head_dim) is {shape}; "
                "each must be at least 1"
            )
        if not dtype.is_floating_point:
            raise ValueError(f"KVStorage: dtype is {dtype}; it must be a floating point type")
        self.k_buffer = torch.empty(shape, dtype=dtype, device=device)
        self.v_buffer = torch.empty(shape, dtype=dtype, device=device)

    @property
    def n_bytes(self) -> int:
        """Bytes of both buffers."""
        return self.k_buffer.nbytes + self.v_buffer.nbytes
