"""How products are put together of the numbers of rows that were checked. The check itself, which
needs a library that picks kernels, is in `test_fixed_products_gpu.py`."""

from __future__ import annotations

import pytest
import torch

from astrai.models import fixed_products
from astrai.models.fixed_products import BLOCK_ROWS, CheckedProducts, RowCounts, cpu_product
from astrai.models.linear import Linear


def integers(*shape: int) -> torch.Tensor:
    """Their products are exact, hence the same in any order."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).float()


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> CheckedProducts:
    """Where nothing differs and products of 80 rows take no time."""
    monkeypatch.setattr(fixed_products, "_time_us", lambda x, *_: 0.0 if len(x) == 80 else 99.0)
    return CheckedProducts([LINEAR, BIASED])


LINEAR = Linear(integers(24, 16))
BIASED = Linear(integers(24, 16), integers(24))


@pytest.mark.parametrize("linear", [LINEAR, BIASED])
@pytest.mark.parametrize("has_out", [False, True])
def test_any_number_of_rows_gives_the_product(
    products: CheckedProducts, linear: Linear, has_out: bool
) -> None:
    for n_rows in (1, 2, 3, 79, 80, 81, 255, 256, 257, 336, 400, 512, 4096, 4100, 9000):
        x = integers(n_rows, 16)
        out = x.new_full((n_rows, 24), float("nan")) if has_out else None
        result = products(x, linear.weight, linear.bias, out)
        assert torch.equal(result, torch.nn.functional.linear(x, linear.weight, linear.bias))
        assert out is None or result.data_ptr() == out.data_ptr()
        assert result.is_contiguous()


def test_rows_are_padded_to_the_number_that_is_soonest_done() -> None:
    counts = RowCounts([2, 16, 64, 256], [5.0, 9.0, 4.0, 50.0], [256])
    assert [counts.padded(n) for n in (1, 2, 16, 17, 64, 65)] == [64, 2, 64, 64, 64, 256]


def test_blocks_are_as_large_as_was_checked() -> None:
    counts = RowCounts([256], [1.0], [256, 512, 1024])
    assert [counts.largest_block(n) for n in (256, 511, 768, 1100, 5000)] == [
        256,
        256,
        512,
        1024,
        1024,
    ]


def test_numbers_of_rows_with_other_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = x @ weight.T
        return out + 1e-3 if len(x) in (1, 8, 512) else out

    monkeypatch.setattr(fixed_products.F, "linear", linear)
    monkeypatch.setattr(fixed_products, "_time_us", lambda *_: 1.0)
    (counts,) = CheckedProducts([LINEAR]).counts
    assert BLOCK_ROWS in counts.few and {1, 8}.isdisjoint(counts.few)
    assert BLOCK_ROWS in counts.blocks and 512 not in counts.blocks


def test_a_library_that_rounds_otherwise_into_given_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product = fixed_products._product

    def other(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        product(x, weight, bias, out)
        out += 1e-3

    monkeypatch.setattr(fixed_products, "_product", other)
    monkeypatch.setattr(fixed_products, "_time_us", lambda *_: 1.0)
    with pytest.raises(RuntimeError, match="256 rows with a weight of 24 x 16 do not repeat"):
        CheckedProducts([LINEAR])


def test_a_library_that_rounds_by_a_rows_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x @ weight.T + torch.arange(len(x))[:, None]

    monkeypatch.setattr(fixed_products.F, "linear", linear)
    with pytest.raises(RuntimeError, match="24 x 16 give a row other bits"):
        CheckedProducts([LINEAR])


def test_the_cpu_product_writes_where_it_is_told() -> None:
    x, out = integers(40, 16), torch.empty(40, 24)
    assert cpu_product(x, LINEAR.weight, None, out) is out
    assert torch.equal(out, x @ LINEAR.weight.T)
