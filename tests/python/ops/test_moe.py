"""A mixture of experts: the kernels against float64 on a GPU; and, which needs none, the order and
tiles that they agree on, followed by a model of them in plain Python, and their refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from astrai import _C
from astrai.extension import ops

DTYPES = (torch.bfloat16, torch.float16)
# Of one result: sums of products of rounded operands in float32, rounded once.
TOLERANCE = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# n_rows, n_active, n_experts, hidden, intermediate: each tile size, uneven edges, published shapes.
SHAPES = [
    (1, 8, 128, 2048, 768),
    (16, 8, 128, 2048, 768),
    (256, 8, 128, 2048, 768),
    (1024, 8, 128, 2048, 768),
    (5, 2, 8, 64, 24),
    (77, 3, 6, 200, 104),
    (333, 4, 60, 256, 88),
    (200, 1, 1, 128, 64),
    (300, 2, 4, 72, 40),
    (600, 4, 16, 136, 264),  # of wgmma's tiles: columns and inner dimension that fill none, both
    (700, 2, 8, 328, 72),  # consumers with and without rows
]


def sorted_pairs(ids: Tensor, n_experts: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """(order, tiles) as `moe_sort` promises them."""
    flat = ids.flatten().tolist()
    order = sorted(range(len(flat)), key=lambda pair: flat[pair])
    rows = _C.moe_tile_rows(len(flat), n_experts)
    tiles = []
    begin = 0
    for expert in range(n_experts):
        end = begin + flat.count(expert)
        tiles += [(expert, at, min(at + rows, end)) for at in range(begin, end, rows)]
        begin = end
    most = _C.moe_max_tiles(len(flat), n_experts)
    assert len(tiles) <= most
    return order, tiles + [(-1, 0, 0)] * (most - len(tiles))


def make_ids(kind: str, n_rows: int, n_active: int, n_experts: int) -> Tensor:
    """int32 [n_rows, n_active], the experts of a row all different."""
    generator = torch.Generator().manual_seed(n_rows)
    shares = torch.rand(n_rows, n_experts, generator=generator)
    if kind == "one_takes_all":
        shares[:, n_experts // 2] = 2.0
    elif kind == "half_idle":
        shares[:, : n_experts // 2] -= 0.0 if n_active > n_experts - n_experts // 2 else 2.0
    return shares.topk(n_active).indices.int()


KINDS = ("even", "one_takes_all", "half_idle")


def experts64(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
) -> tuple[Tensor, Tensor]:
    """float64 (sum, sum of absolute parts), [n_rows, hidden]."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    size = torch.zeros_like(out)
    for expert in range(len(gate_up)):
        rows, choice = (ids == expert).nonzero(as_tuple=True)
        if not len(rows):
            continue
        gate, up = (x[rows].double() @ gate_up[expert].double().T).chunk(2, dim=1)
        gated = gate * torch.sigmoid(gate) * up
        part = weights[rows, choice, None].double() * (gated @ down[expert].double().T)
        magnitude = weights[rows, choice, None].double() * (
            gated.abs() @ down[expert].double().abs().T
        )
        out.index_add_(0, rows, part)
        size.index_add_(0, rows, magnitude)
    return out, size


def random_weights(
    n_experts: int, hidden: int, size: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(11)
    gate_up = torch.randn(n_experts, 2 * size, hidden, generator=generator, device=device)
    down = torch.randn(n_experts, hidden, size, generator=generator, device=device)
    return (gate_up / hidden**0.5).to(dtype), (down / size**0.5).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 2, 8, 64, 24), (77, 3, 6, 200, 104), (300, 2, 4, 72, 40)])
def test_tiles_taken_as_the_kernels_take_them_give_the_sum(
    shape: tuple[int, int, int, int, int], kind: str
) -> None:
    """A model of the two products: tiles of positions, groups of gate and up rows in turns, rows
    gathered by order and scattered back by it; whatever is not covered stays NaN."""
    n_rows, n_active, n_experts, hidden, size = shape
    ids = make_ids(kind, n_rows, n_active, n_experts)
    x = torch.randn(n_rows, hidden, dtype=torch.float64)
    gate_up, down = (
        w.double() for w in random_weights(n_experts, hidden, size, torch.float32, "cpu")
    )
    order, tiles = sorted_pairs(ids, n_experts)
    pairs = torch.tensor(order)
    n_columns = 64 if _C.moe_tile_rows(len(order), n_experts) == 16 else 128
    gated = torch.full((len(order), size), torch.nan, dtype=torch.float64)
    parts = torch.full((len(order), hidden), torch.nan, dtype=torch.float64)
    for expert, begin, end in tiles:
        if expert < 0:
            continue
        rows = x[pairs[begin:end] // n_active]
        for first in range(0, size, n_columns // 2):
            for group in range(0, n_columns, 16):
                found = [_C.moe_gate_up_row(group + i, first, size) for i in range(16)]
                for gate_row, up_row in zip(found[:8], found[8:], strict=True):
                    assert (gate_row < 0) == (up_row < 0)
                    if gate_row < 0:
                        continue
                    gate, up = rows @ gate_up[expert, gate_row], rows @ gate_up[expert, up_row]
                    assert torch.isnan(gated[begin:end, gate_row]).all(), "written once"
                    gated[begin:end, gate_row] = gate * torch.sigmoid(gate) * up
    for expert, begin, end in tiles:
        if expert >= 0:
            parts[pairs[begin:end]] = gated[begin:end] @ down[expert].T
    weights = torch.rand(n_rows, n_active, dtype=torch.float64)
    out = (parts.view(n_rows, n_active, hidden) * weights[..., None]).sum(1)
    expected, _ = experts64(x, ids.long(), weights, gate_up, down)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-10)


def route64(logits: Tensor, n_active: int, norm: bool) -> tuple[Tensor, Tensor]:
    shares, ids = torch.softmax(logits.double(), 1).sort(dim=1, descending=True, stable=True)
    weights = shares[:, :n_active]
    return ids[:, :n_active], weights / weights.sum(1, keepdim=True) if norm else weights


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("n_experts", "n_active"), [(8, 2), (60, 4), (128, 8), (512, 32), (3, 3)])
@pytest.mark.parametrize("n_rows", [1, 5, 257])
def test_routes_are_those_of_float64(
    n_rows: int, n_experts: int, n_active: int, norm: bool, dtype: torch.dtype
) -> None:
    # Far enough apart for one order in every precision; rounding makes some of 512 equal.
    steps = torch.rand(n_rows, n_experts, device="cuda").argsort(1)
    logits = (steps.float() / 16 - 8).to(dtype) if n_experts <= 256 else (steps / 64.0).to(dtype)
    ids, weights = ops.moe_route(logits, n_active, norm)
    expected_ids, expected = route64(logits, n_active, norm)
    assert torch.equal(ids.long(), expected_ids)
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.gpu
def test_of_equal_experts_the_lower_number_is_chosen_and_rows_of_nan_choose_some() -> None:
    logits = torch.zeros(4, 128, dtype=torch.bfloat16, device="cuda")
    logits[1, 127] = 1.0
    logits[2] = torch.nan
    logits[3] = -torch.inf
    logits[3, 5] = 0.0
    ids, weights = ops.moe_route(logits, 3, True)
    assert ids.tolist() == [[0, 1, 2], [127, 0, 1], [0, 1, 2], [5, 0, 1]]
    assert torch.isnan(weights[2]).all()
    assert weights[3].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [*SHAPES, (8192, 8, 128, 8, 8)])
def test_pairs_are_sorted_stably_and_cut_into_tiles(
    shape: tuple[int, int, int, int, int], kind: str
) -> None:
    n_rows, n_active, n_experts, _, _ = shape
    ids = make_ids(kind, n_rows, n_active, n_experts)
    order, tiles = ops.moe_sort(ids.cuda(), n_experts)
    expected_order, expected_tiles = sorted_pairs(ids, n_experts)
    assert order.tolist() == expected_order
    assert [tuple(tile[:3]) for tile in tiles.tolist()] == expected_tiles


def mixed(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The sum through the kernels, whose outputs are NaN before."""
    n_pairs, (n_experts, hidden, size) = ids.numel(), down.shape
    order = torch.full((n_pairs,), -1, dtype=torch.int32, device="cuda")
    tiles = order.new_full((_C.moe_max_tiles(n_pairs, n_experts), 4), -7)
    _C.moe_sort(ids, order, tiles, n_experts)
    gated = x.new_full((n_pairs, size), torch.nan)
    _C.moe_gate_up(x, gate_up, order, tiles, gated)
    parts = x.new_full((n_pairs, hidden), torch.nan)
    _C.moe_down(gated, down, order, tiles, parts)
    out = torch.full_like(x, torch.nan)
    _C.moe_combine(parts, weights, out)
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_sum_is_that_of_float64(
    shape: tuple[int, int, int, int, int], kind: str, dtype: torch.dtype
) -> None:
    n_rows, n_active, n_experts, hidden, size = shape
    x = torch.randn(n_rows, hidden, device="cuda").to(dtype)
    gate_up, down = random_weights(n_experts, hidden, size, dtype, "cuda")
    ids = make_ids(kind, n_rows, n_active, n_experts).cuda()
    idle = set(range(n_experts)) - set(ids.unique().tolist())
    weights = torch.rand(n_rows, n_active, device="cuda")
    expected, magnitude = experts64(x, ids.long(), weights, gate_up, down)
    for expert in idle:
        gate_up[expert], down[expert] = torch.nan, torch.nan  # experts without rows are not read

    out = mixed(x, ids, weights, gate_up, down)

    # gated, the parts and the sum are each rounded once.
    assert torch.all((out.double() - expected).abs() <= 3 * TOLERANCE[dtype] * magnitude + 1e-5)


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_every_batch_and_tile_size() -> None:
    gate_up, down = random_weights(16, 256, 96, torch.bfloat16, "cuda")
    x = torch.randn(2000, 256, device="cuda").bfloat16()
    ids = make_ids("even", 2000, 4, 16).cuda()
    weights = torch.rand(2000, 4, device="cuda")
    together = mixed(x, ids, weights, gate_up, down)
    for n in (1, 3, 32, 200):
        assert torch.equal(mixed(x[:n], ids[:n], weights[:n], gate_up, down), together[:n])
    assert torch.equal(mixed(x, ids, weights, gate_up, down), together)


@pytest.mark.gpu
def test_one_graph_serves_every_routing() -> None:
    gate_up, down = random_weights(8, 64, 40, torch.float16, "cuda")
    x = torch.randn(12, 64, device="cuda").half()
    logits = torch.randn(12, 8, device="cuda").half()

    def run() -> Tensor:
        ids, weights = ops.moe_route(logits, 2, True)
        order, tiles = ops.moe_sort(ids, 8)
        gated = ops.moe_gate_up(x, gate_up, order, tiles)
        return ops.moe_combine(ops.moe_down(gated, down, order, tiles), weights)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for seed in range(4):
        torch.cuda.manual_seed(seed)
        logits.copy_(torch.randn_like(logits))
        if seed == 3:
            logits[:, 2] = 20.0  # one expert gets all rows
        graph.replay()
        assert torch.equal(out, run())


@pytest.mark.gpu
def test_no_rows_launch_nothing() -> None:
    gate_up, down = random_weights(8, 64, 40, torch.float16, "cuda")
    ids, weights = ops.moe_route(torch.zeros(0, 8, device="cuda").half(), 2, True)
    order, tiles = ops.moe_sort(ids, 8)
    x = torch.zeros(0, 64, device="cuda").half()
    gated = ops.moe_gate_up(x, gate_up, order, tiles)
    out = ops.moe_combine(ops.moe_down(gated, down, order, tiles), weights)
    assert out.shape == (0, 64)


def product_arguments(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return {
        "x": torch.zeros(4, 64, dtype=dtype),
        "gate_up": torch.zeros(8, 48, 64, dtype=dtype),
        "order": torch.zeros(8, dtype=torch.int32),
        "tiles": torch.zeros(_C.moe_max_tiles(8, 8), 4, dtype=torch.int32),
        "gated": torch.zeros(8, 24, dtype=dtype),
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gate_up", lambda t: t[:, :46], r"gate_up has shape \[8, 46, 64\]; expected .*48"),
        ("gated", lambda t: t[:7], r"gated has shape \[7, 24\]; expected a whole number of pairs"),
        ("tiles", lambda t: t[:5], r"tiles has shape \[5, 4\]; expected \[8, 4\]"),
        ("order", lambda t: t.long(), r"order is int64"),
        ("x", lambda t: t.half(), r"float16|bfloat16"),
        ("x", lambda t: t.repeat(1, 2)[:, ::2], r"x .* must be contiguous"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    name: str, value: Callable[[Tensor], Tensor], message: str
) -> None:
    arguments = product_arguments()
    arguments[name] = value(arguments[name])
    with pytest.raises(ValueError, match=message):
        _C.moe_gate_up(**arguments)


def test_odd_sizes_dtypes_and_the_cpu_are_refused() -> None:
    with pytest.raises(ops.KernelUnavailableError, match="moe_gate_up: x is float32"):
        _C.moe_gate_up(**product_arguments(torch.float32))
    with pytest.raises(ValueError, match=r"gated .*multiple of 8"):
        _C.moe_gate_up(
            **{
                **product_arguments(),
                "gate_up": torch.zeros(8, 40, 64).bfloat16(),
                "gated": torch.zeros(8, 20).bfloat16(),
            }
        )
    with pytest.raises(ValueError, match=r"1 to 512 experts"):
        ops.moe_route(torch.zeros(2, 513).bfloat16(), 2, True)
    with pytest.raises(ValueError, match="not more than there are"):
        ops.moe_route(torch.zeros(2, 4).bfloat16(), 5, True)
    with pytest.raises(ValueError, match="ids does not start on 16 bytes"):
        ops.moe_sort(torch.zeros(9, dtype=torch.int32)[1:].view(4, 2), 8)
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"logits is on the CPU|no CUDA kernels"):
        ops.moe_route(torch.zeros(2, 8).bfloat16(), 2, True)
    with pytest.raises(expected, match=r"ids is on the CPU|no CUDA kernels"):
        ops.moe_sort(torch.zeros(2, 2, dtype=torch.int32), 8)
