"""Products whose result for a row does not depend on how many rows there are, to the bit.

On a CPU the compiled product is one. On a GPU the library picks a kernel by the number of rows, and
two kernels give a row the same bits where they add up its products in one sequence, which most do.
Nothing is left to belief: for each shape of a weight and each number of rows that may be used, the
rows are compared with what a block of a constant number of rows gives, before anything is served.
Numbers that differ, or are slow, are not used: rows are then padded to one that is. What stands in
the padding has no influence.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from astrai import _C

if TYPE_CHECKING:
    from collections.abc import Iterable

    from astrai.models.linear import Linear

__all__ = ["BLOCK_ROWS", "CheckedProducts", "cpu_product"]

BLOCK_ROWS = 256  # of the product that all others are compared with
_FEW = [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240]
_MOST_ROWS = 4096
_MOST_OUT_BYTES = 256 << 20  # of one product, the largest of which are those of the head
_PAD_US = 3.0  # what the copy of padded rows costs, beside the product
_N_TIMED = 8


def cpu_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `linear`, on a CPU for the dtypes in `linear.CPU_DTYPES`. Sums over the row in a fixed
    order; made for few rows, so many take longer than torch's."""
    if out is None:
        out = x.new_empty((x.shape[0], weight.shape[0]))
    _C.cpu_linear(x.contiguous(), weight, out, bias)
    return out


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of rows, rising, whose products are the same. Up to BLOCK_ROWS with their time."""

    few: list[int]
    few_us: list[float]
    blocks: list[int]  # multiples of BLOCK_ROWS, itself among them

    def padded(self, n_rows: int) -> int:
        """The number that computes 1 <= n_rows <= BLOCK_ROWS of them soonest."""
        first = bisect_left(self.few, n_rows)

        def cost_us(place: int) -> float:
            return self.few_us[place] + (_PAD_US if self.few[place] != n_rows else 0.0)

        return self.few[min(range(first, len(self.few)), key=cost_us)]

    def largest_block(self, n_rows: int) -> int:
        """The largest multiple of BLOCK_ROWS <= n_rows."""
        return max(n for n in self.blocks if n <= n_rows)


Shape = tuple[int, int, bool, int]  # n_out, n_in, whether there is a bias, alignment of the weight


class CheckedProducts:
    """`linear` on a GPU, in numbers of rows that were checked. For one stream at a time."""

    def __init__(self, weights: Iterable[Linear]) -> None:
        """Check every shape among the weights, which takes some hundredths of a second each.
        Raises RuntimeError where not even blocks of one size give a row the same bits."""
        self._counts: dict[Shape, RowCounts] = {}
        self._pads: dict[int, torch.Tensor] = {}  # by n_in: [BLOCK_ROWS, n_in]
        for linear in weights:
            shape = _shape_of(linear.weight, linear.bias)
            if shape not in self._counts:
                self._counts[shape] = _check(linear.weight, linear.bias)
                n_in = linear.weight.shape[1]
                self._pads[n_in] = linear.weight.new_zeros((BLOCK_ROWS, n_in))

    @property
    def counts(self) -> list[RowCounts]:
        """Of every shape."""
        return list(self._counts.values())

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `linear`. The result may be the first rows of a longer tensor."""
        counts = self._counts[_shape_of(weight, bias)]
        n_rows = x.shape[0]
        n_rest = n_rows % BLOCK_ROWS
        n_padded = counts.padded(n_rest) if n_rest else 0
        if out is None and n_rows == n_padded:
            return F.linear(x, weight, bias)
        result = out
        if result is None:
            result = x.new_empty((n_rows - n_rest + n_padded, weight.shape[0]))
        begin = 0
        while n_rows - begin >= BLOCK_ROWS:
            end = begin + counts.largest_block(n_rows - begin)
            _product(x[begin:end], weight, bias, result[begin:end])
            begin = end
        if n_rest:
            rest = x[begin:]
            if n_rest != n_padded:
                rest = self._pads[x.shape[1]][:n_padded]
                rest[:n_rest].copy_(x[begin:])
            if out is None or n_rest == n_padded:
                _product(rest, weight, bias, result[begin : begin + n_padded])
            else:
                result[begin:].copy_(F.linear(rest, weight, bias)[:n_rest])
        return result[:n_rows]


def _shape_of(weight: torch.Tensor, bias: torch.Tensor | None) -> Shape:
    n_out, n_in = weight.shape
    return n_out, n_in, bias is not None, weight.data_ptr() % 256


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    if bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


def _check(weight: torch.Tensor, bias: torch.Tensor | None) -> RowCounts:
    """Which numbers of rows give random rows the bits that blocks of BLOCK_ROWS give them."""
    n_out, n_in = weight.shape
    affordable = _MOST_OUT_BYTES // (n_out * weight.element_size()) // BLOCK_ROWS * BLOCK_ROWS
    most = max(BLOCK_ROWS, min(_MOST_ROWS, affordable))
    generator = torch.Generator(weight.device).manual_seed(n_out * 31 + n_in)
    x = torch.randn((most, n_in), generator=generator, device=weight.device).to(weight.dtype)
    expected = torch.cat([F.linear(block, weight, bias) for block in torch.split(x, BLOCK_ROWS)])
    turned = F.linear(x[:BLOCK_ROWS].roll(1, 0), weight, bias).roll(-1, 0)
    if not torch.equal(turned, expected[:BLOCK_ROWS]):
        raise RuntimeError(
            f"batch_invariant: products with a weight of {n_out} x {n_in} give a row other bits "
            "at another place among the rows; serve without the option"
        )
    out = torch.empty_like(expected)

    def is_same(n_rows: int, begin: int = 0) -> bool:
        # At the beginning of a tensor, as alignment may choose the kernel, too.
        rows = x[begin : begin + n_rows].clone()
        _product(rows, weight, bias, out[:n_rows])
        got = F.linear(rows, weight, bias)
        is_expected = torch.equal(got, expected[begin : begin + n_rows])
        return is_expected and torch.equal(out[:n_rows], got)

    def is_always_same(n_rows: int) -> bool:
        # Other sums show in few of the rounded values: one row may have none of them.
        return all(is_same(n_rows, i) for i in range(0, BLOCK_ROWS - n_rows + 1, n_rows))

    few = [n for n in [*_FEW, BLOCK_ROWS] if is_always_same(n)]
    blocks = [n for n in range(BLOCK_ROWS, most + 1, BLOCK_ROWS) if is_same(n)]
    if BLOCK_ROWS not in few or BLOCK_ROWS not in blocks:
        raise RuntimeError(
            f"batch_invariant: products of {BLOCK_ROWS} rows with a weight of {n_out} x {n_in} do "
            "not repeat their bits; serve without the option"
        )
    few_us = [_time_us(x[:n], weight, bias, out[:n]) for n in few]
    return RowCounts(few, few_us, blocks)


def _time_us(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> float:
    """Microseconds of one product, the best of three series."""
    series: list[float] = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch
        begin.record()
        for _ in range(_N_TIMED):
            _product(x, weight, bias, out)
        end.record()
        end.synchronize()
        series.append(1e3 * begin.elapsed_time(end) / _N_TIMED)
    return min(series)
