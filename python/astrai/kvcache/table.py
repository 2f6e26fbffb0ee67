"""The request table as the device sees it.

On the CPU it is the memory of the host table itself. On a GPU it is a copy; every step carries the
entries written since the last one along with its index arrays and applies them on the device. What
a step that fails before that would have carried, of all requests, comes with the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from astrai import _C

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor


class RequestTable:
    """`req_to_token` of a pool on its device, kept equal to the host's.

    host: int32 [max_batch_size, max_seq_len], aliases the pool's own table.
    device: the tensor kernels read; `host` itself on the CPU, elsewhere with one row more, full of
    the reserved slot, which padding rows name.
    """

    def __init__(self, pool: _C.PagePool, device: torch.device) -> None:
        self._pool = pool
        shape = (pool.max_batch_size, pool.max_seq_len)
        self.host: Tensor = torch.frombuffer(pool.table, dtype=torch.int32).view(shape)
        self._is_alias = device.type == "cpu"
        self.device: Tensor = self.host
        if not self._is_alias:
            padding = torch.full((1, shape[1]), pool.reserved_slot, dtype=torch.int32)
            self.device = torch.cat([self.host, padding]).to(device)
        self._is_behind = False  # entries that a plan has taken from the pool have not arrived

    def n_update_int32(self, spans: _C.DirtySpans) -> int:
        """Room that `write_update` needs in a staging buffer for these dirty spans."""
        return 0 if self._is_alias else 2 * _C.n_dirty_entries(spans)

    def catch_up(self) -> None:
        """Send the whole table where a plan before was not sent to its end. To be called before a
        plan is built; the copy, on the current stream, is waited for."""
        if self._is_behind:
            self.device[:-1].copy_(self.host)
            self._is_behind = False

    def expect(self, spans: _C.DirtySpans) -> int:
        """Take note of what a plan has taken from the pool, until `apply_update`. Returns
        n_update_int32(spans)."""
        n_update = self.n_update_int32(spans)
        self._is_behind = n_update > 0
        return n_update

    def write_update(self, spans: _C.DirtySpans, out: Tensor | npt.NDArray[np.int32]) -> None:
        """Write the entries of spans to out: all positions, then all slots.

        out: int32 [n_update_int32(spans)] in host memory. A position is an index into the flat
        table, which `PagePool` keeps within int32.
        """
        array = out.numpy() if isinstance(out, torch.Tensor) else out
        _C.write_table_update(self._pool, spans, array)

    def apply_update(self, update: Tensor) -> None:
        """Apply an update, already on the device, to the device table."""
        positions, slots = update.chunk(2)
        self.device.put_(positions.to(torch.int64), slots)
        self._is_behind = False
