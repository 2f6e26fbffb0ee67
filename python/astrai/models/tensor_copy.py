"""Copies of stored tensors into the serving dtype, order and device, piece by piece.

Onto a CPU, the threads of `_C` copy each piece. To a GPU, several threads copy pieces into pinned
buffers, from where they travel while the next ones are read; what changes them, dtype and order, is
done there. Each piece is looked through for NaN and infinity while it is at hand. Pieces bound the
memory that a copy takes beside source and target, whatever the size of a tensor."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch

from astrai import _C

__all__ = ["StagedCopier", "copy_on_cpu", "is_finite", "row_ranges"]

_PIECE_BYTES = 4 << 20  # of the source
_MAX_THREADS = 8  # past the bandwidth of a PCIe link
# What `_C.dequantize` reads, by its names there.
_FORMATS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def is_finite(values: torch.Tensor) -> bool:
    """Is there no NaN and no infinity? values: float32, bfloat16 or float16, on any device. One
    read of them, nothing of their size allocated."""
    if values.device.type == "cpu":
        return _C.all_finite(values)
    if values.numel() == 0:
        return True
    # Both keep NaN, and an infinity is one of them.
    low, high = torch.aminmax(values)
    return math.isfinite(low.item()) and math.isfinite(high.item())


def copy_on_cpu(source: torch.Tensor, out: torch.Tensor, row_index: torch.Tensor | None) -> bool:
    """Copy into out, on a CPU, of the same shape. row_index: as in `WeightSource.copy_into`.
    Returns whether all that was written is finite."""
    finite = True
    for begin, end in row_ranges(source, _PIECE_BYTES):
        piece = source[begin:end]
        if row_index is None:
            rows = out[begin:end]
            _convert(piece, rows)
        else:
            rows = torch.empty(piece.shape, dtype=out.dtype)
            _convert(piece, rows)
            out.index_copy_(0, row_index[begin:end], rows)
        finite = finite and is_finite(rows)
    return finite


def _convert(source: torch.Tensor, out: torch.Tensor) -> None:
    """Copy between equal shapes on a CPU. Where it can be, on the threads that then look for NaN:
    torch's would still be spinning on the cores that those need."""
    if source.dtype in _FORMATS and source.is_contiguous() and out.is_contiguous():
        matrix = (math.prod(source.shape[:-1]), source.shape[-1])
        packed = source.view(matrix).view(torch.uint8)
        _C.dequantize(packed, _FORMATS[source.dtype], out.view(matrix))
    else:
        out.copy_(source)


def row_ranges(source: torch.Tensor, n_bytes: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of rows that take about n_bytes together, at least one row each."""
    n_rows = source.shape[0]
    each = max(1, n_bytes * n_rows // max(1, source.nbytes))
    for begin in range(0, n_rows, each):
        yield begin, min(begin + each, n_rows)


class StagedCopier:
    """Copies to one device through buffers of its threads."""

    def __init__(self, device: torch.device, n_threads: int | None = None) -> None:
        """device: a GPU; a CPU does for tests. n_threads: by default up to 8, one a core."""
        self._device = device
        self._local = threading.local()
        n_threads = n_threads or min(_MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(n_threads, "weights")

    def copy(self, source: torch.Tensor, out: torch.Tensor, row_index: torch.Tensor | None) -> bool:
        """`copy_on_cpu` for an out on the device, row_index there as well. Done when it returns."""
        if source.dim() == 3 and _is_large(source[0]):
            # Matrices of experts, the rows of which are wanted as pieces.
            assert row_index is None
            return all(self.copy(one, to, None) for one, to in zip(source, out, strict=True))
        # `out` may reuse memory whose last use has been launched and is not done.
        is_free = self._launched_so_far()

        def put(span: tuple[int, int]) -> bool:
            return self._stage.put(source, out, row_index, span, is_free)

        return all(list(self._pool.map(put, row_ranges(source, _PIECE_BYTES))))

    def _launched_so_far(self) -> torch.cuda.Event | None:
        """What is done when the work of the caller's stream is."""
        if self._device.type != "cuda":
            return None
        event: torch.cuda.Event = torch.cuda.current_stream(self._device).record_event()
        return event

    @property
    def _stage(self) -> _Stage:
        """This thread's."""
        stage: _Stage | None = getattr(self._local, "stage", None)
        if stage is None:
            stage = self._local.stage = _Stage(self._device)
        return stage


def _is_large(tensor: torch.Tensor) -> bool:
    return tensor.nbytes > _PIECE_BYTES


class _Stage:
    """One thread's pinned buffer and stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._stream: torch.cuda.Stream | None = None
        if self._is_cuda:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch

    def put(
        self,
        source: torch.Tensor,
        out: torch.Tensor,
        row_index: torch.Tensor | None,
        span: tuple[int, int],
        is_free: torch.cuda.Event | None,
    ) -> bool:
        """Copy the rows of span = (begin, end) once is_free has come. Returns whether they are
        finite; they are then in place."""
        begin, end = span
        staged = self._filled(source[begin:end])
        # `out` may have been made in that mode, in which a thread is only by itself.
        with torch.inference_mode(), self._on_stream():
            if self._stream is not None and is_free is not None:
                self._stream.wait_event(is_free)
            if row_index is None:
                rows = out[begin:end]
                if rows.dtype == staged.dtype:
                    rows.copy_(staged, non_blocking=True)
                else:
                    rows.copy_(staged.to(self._device, non_blocking=True))
            else:
                rows = staged.to(self._device, non_blocking=True).to(out.dtype)
                out.index_copy_(0, row_index[begin:end], rows)
            # Reading the answer waits for the copy, after which the buffer may be filled again;
            # meanwhile the other threads fill theirs.
            return is_finite(rows)

    def _filled(self, piece: torch.Tensor) -> torch.Tensor:
        """The piece in the buffer."""
        if self._buffer.numel() < piece.nbytes:
            n_bytes = max(piece.nbytes, _PIECE_BYTES)
            self._buffer = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=self._is_cuda)
        flat = self._buffer[: piece.nbytes]
        # numpy copies in this thread; torch would start a team of threads in each.
        flat.numpy()[:] = piece.contiguous().reshape(-1).view(torch.uint8).numpy()
        return flat.view(piece.dtype).view(piece.shape)

    def _on_stream(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        return torch.cuda.stream(self._stream)
