"""_C.dequantize: every block format against the gguf package, in every dtype; what is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from astrai import _C

FORMATS = list(_C.BLOCK_FORMATS)
# Where the float16 scales of a block are; the other bytes may be anything.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
}


def random_rows(name: str, n_rows: int, n_blocks: int, seed: int = 0) -> np.ndarray:
    """uint8 [n_rows, bytes]: any bits, but for scales that are finite."""
    rng = np.random.default_rng(seed)
    _, n_bytes = _C.BLOCK_FORMATS[name]
    if name in ("F32", "F16", "BF16"):
        values = rng.standard_normal((n_rows, n_blocks), dtype=np.float32)
        if name == "BF16":
            return (
                np.ascontiguousarray(values.view(np.uint8).reshape(n_rows, -1, 4)[..., 2:])
                .view(np.uint8)
                .reshape(n_rows, -1)
            )
        return values.astype(np.float32 if name == "F32" else np.float16).view(np.uint8)
    blocks = rng.integers(0, 256, (n_rows, n_blocks, n_bytes), dtype=np.uint8)
    for at in SCALES[name]:
        # Subnormal ones too.
        scales = (rng.standard_normal((n_rows, n_blocks)) * 10.0 ** rng.integers(-7, 3)).astype(
            "<f2"
        )
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(n_rows, -1)


def expected_values(rows: np.ndarray, name: str) -> torch.Tensor:
    return torch.from_numpy(np.array(gguf.quants.dequantize(rows, Kind[name]), dtype=np.float32))


def test_formats_are_those_of_the_gguf_package() -> None:
    for name, sizes in _C.BLOCK_FORMATS.items():
        assert gguf.GGML_QUANT_SIZES[Kind[name]] == sizes


@pytest.mark.parametrize("name", FORMATS)
def test_float32_values_have_the_bits_of_the_gguf_package(name: str) -> None:
    for seed in range(6):
        rows = random_rows(name, 5, 3, seed)
        expected = expected_values(rows, name)
        out = torch.full_like(expected, 7.0)
        _C.dequantize(rows, name, out)
        assert torch.equal(out.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMATS)
def test_values_are_rounded_once_as_torch_rounds(name: str, dtype: torch.dtype) -> None:
    rows = random_rows(name, 70, 9)
    expected = expected_values(rows, name).to(dtype)
    out = torch.empty_like(expected)
    _C.dequantize(rows, name, out)
    assert torch.equal(out.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("name", ["F16", "Q4_1", "Q6_K"])
def test_rows_go_where_row_index_says(name: str) -> None:
    rows = random_rows(name, 600, 4)
    row_index = torch.randperm(600, generator=torch.Generator().manual_seed(1))
    expected = expected_values(rows, name)
    out = torch.empty_like(expected)
    _C.dequantize(rows, name, out, row_index)
    assert torch.equal(out[row_index], expected)


def test_infinite_and_missing_scales_do_no_harm() -> None:
    block = np.zeros((1, 34), dtype=np.uint8)
    block[0, 2:] = 5
    for bits, kind in ((0x7C00, torch.isinf), (0x7E00, torch.isnan)):
        block[0, :2] = np.frombuffer(np.uint16(bits).tobytes(), dtype=np.uint8)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            out = torch.empty(1, 32, dtype=dtype)
            _C.dequantize(block, "Q8_0", out)
            assert kind(out).all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": "Q8_K"}, "format is 'Q8_K'; accepted are F32"),
        ({"packed": np.zeros((2, 33), dtype=np.uint8)}, "rows of 33 bytes"),
        ({"packed": np.zeros((2, 34), dtype=np.int8)}, "packed"),
        ({"out": torch.zeros(2, 31)}, "out"),
        ({"out": torch.zeros(2, 32, dtype=torch.int32)}, "out"),
        ({"out": torch.zeros(2, 64)[:, :32]}, "out"),
        ({"row_index": torch.tensor([0])}, "row_index"),
        ({"row_index": torch.tensor([0, 0])}, r"row_index\[1\] is 0"),
        ({"row_index": torch.tensor([0, 2])}, r"row_index\[1\] is 2"),
        ({"row_index": torch.tensor([0, 1], dtype=torch.int32)}, "row_index"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change: dict[str, object], named: str) -> None:
    good = {
        "packed": np.zeros((2, 34), dtype=np.uint8),
        "format": "Q8_0",
        "out": torch.zeros(2, 32),
        "row_index": None,
    }
    _C.dequantize(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=named):
        _C.dequantize(**{**good, **change})  # type: ignore[arg-type]


def test_an_output_that_cannot_be_written_is_refused() -> None:
    values = np.zeros((2, 32), dtype=np.float32)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        _C.dequantize(np.zeros((2, 34), dtype=np.uint8), "Q8_0", values)
