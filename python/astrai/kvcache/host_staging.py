"""Host memory for what travels to a device and back while the host goes on.

    chunk:  | taken | taken | ... | free |        the last chunk; earlier ones were too small

An asynchronous copy reads its source, or writes its target, some time after the call that asks for
it. So what has been taken is not given out again before `reset`, and to call that is to say that
all these copies have run: whoever does has waited for an event behind them.

On a GPU the memory is pinned, and not by torch. Torch's tensors of pinned memory make CUDA events
as they are dropped; after an error of a kernel that fails, in a destructor, and ends the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from astrai import _C

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 64  # bytes
_MOST_VIEWS = 64


class HostStaging:
    """The memory of one launch after another. Single-threaded."""

    def __init__(self, device: torch.device, n_bytes: int = 1 << 16) -> None:
        """device: that the copies go to; where it is a CPU the memory is ordinary. n_bytes: of the
        first chunk, above 0. Raises KernelUnavailableError for a GPU in a build without CUDA."""
        self._device = device
        self._chunks = [self._chunk(n_bytes)]
        self._n_bytes = n_bytes  # of the last chunk
        self._n_used = 0  # bytes of the last chunk
        # Of the last chunk, by begin, bytes and type. One launch mostly takes what another took,
        # and to make a tensor costs far more than to find it, the more so behind a pause.
        self._views: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def take(self, n: int, dtype: torch.dtype) -> Tensor:
        """[n] uninitialised elements, on 64 bytes. Allocates where the chunk is full. The tensor is
        the taker's until `reset`; its shape must stay."""
        n_bytes = n * dtype.itemsize
        chunk = self._chunks[-1]
        if self._n_used + n_bytes > self._n_bytes:
            n_chunk_bytes = max(2 * self._n_bytes, n_bytes)
            chunk = self._chunk(n_chunk_bytes)
            self._chunks.append(chunk)
            self._n_bytes, self._n_used = n_chunk_bytes, 0
            self._views.clear()
        begin = self._n_used
        self._n_used += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        key = (begin, n_bytes, dtype)
        view = self._views.get(key)
        if view is None:
            if len(self._views) == _MOST_VIEWS:
                self._views.clear()
            view = self._views[key] = chunk[begin : begin + n_bytes].view(dtype)
        return view

    def hold(self, values: Tensor) -> Tensor:
        """A copy of values, which are in host memory, in memory that is taken here."""
        held = self.take(values.numel(), values.dtype).view(values.shape)
        return held.copy_(values)

    def reset(self) -> None:
        """Take back all that was taken. Of several chunks the last, the largest, is kept."""
        del self._chunks[:-1]
        self._n_used = 0

    def _chunk(self, n_bytes: int) -> Tensor:
        """uint8 [n_bytes]."""
        if self._device.type == "cpu":
            return torch.empty(n_bytes, dtype=torch.uint8)
        buffer = _C.PinnedBuffer(n_bytes, self._device.index or 0)
        return torch.frombuffer(buffer, dtype=torch.uint8)
