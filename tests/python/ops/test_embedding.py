"""embedding: against indexing on a GPU, and its refusals, which need none."""

from __future__ import annotations

import pytest
import torch
from rounding import random_rows

from astrai import _C
from astrai.extension import ops


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("n_rows", "length"), [(1, 4096), (7, 576), (300, 64), (5, 33)])
def test_rows_are_the_table_rows_bit_for_bit(
    n_rows: int, length: int, id_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    table = random_rows((500, length), dtype)
    ids = torch.randint(0, 500, (n_rows,), device="cuda", dtype=id_dtype)
    ids[0] = 499
    out = torch.full((n_rows, length), torch.nan, dtype=dtype, device="cuda")

    returned = ops.embedding(ids, table, out=out)

    assert returned is out
    assert torch.equal(out, table[ids.long()])


@pytest.mark.gpu
def test_tables_and_outputs_inside_wider_tensors_follow_their_strides() -> None:
    table = random_rows((50, 72), torch.bfloat16)[:, :64]
    memory = torch.full((6, 72), torch.nan, dtype=torch.bfloat16, device="cuda")
    ids = torch.tensor([3, 3, 0, 49, 7, 1], device="cuda")

    ops.embedding(ids, table, out=memory[:, :64])

    assert torch.equal(memory[:, :64], table[ids])
    assert memory[:, 64:].isnan().all()


@pytest.mark.gpu
def test_t27_rows_beyond_2_to_the_31_elements_are_addressed_in_64_bits() -> None:
    length = 8192
    n_rows = 2**31 // length + 2
    if torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GiB of free device memory")
    table = torch.zeros(n_rows, length, dtype=torch.bfloat16, device="cuda")
    table[-1] = torch.randn(length, device="cuda").bfloat16()
    ids = torch.zeros(n_rows, dtype=torch.int32, device="cuda")
    ids[-1] = n_rows - 1

    out = ops.embedding(ids, table)

    assert torch.equal(out[-1], table[-1])
    assert not out[-9:-1].any()


@pytest.mark.gpu
def test_no_rows_is_no_work() -> None:
    table = random_rows((5, 8), torch.bfloat16)
    assert ops.embedding(torch.empty(0, dtype=torch.int64, device="cuda"), table).shape == (0, 8)


def test_bad_arguments_are_refused() -> None:
    table, ids = torch.zeros(5, 8, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ops.KernelUnavailableError, match="table is float32"):
        ops.embedding(ids, table.float())
    with pytest.raises(ValueError, match="ids is float32; accepted: int32, int64"):
        ops.embedding(ids.float(), table)
    with pytest.raises(ValueError, match=r"out has shape \[2, 8\]; expected \[T=3, N=8\]"):
        ops.embedding(ids, table, out=torch.zeros(2, 8, dtype=torch.bfloat16))
    expected = ValueError if _C.BUILT_WITH_CUDA else ops.KernelUnavailableError
    with pytest.raises(expected, match=r"ids is on the CPU|no CUDA kernels"):
        ops.embedding(ids, table)
