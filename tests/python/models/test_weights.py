"""Checkpoints on disk: every GGUF quantisation, broken safetensors, tensors that do not fit."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from toy_models import llama, llama_interleaved, qwen3, reference_logits, write_gguf

from astrai import _C
from astrai.models import ModelLoadError, load_model, weights_gguf
from astrai.models.gguf_file import GGUFFile, GGUFTensor
from astrai.models.gguf_parts import GGUFParts
from astrai.models.llama import LLAMA
from astrai.models.weights import interleaved_rows
from astrai.models.weights_gguf import GGUFSource

IDS = [3, 17, 90, 4, 61, 33]
TOLERANCE = 2e-4  # float32 sums in another order, on logits of size 10


def our_logits(path: Path, dtype: str = "float32") -> torch.Tensor:
    model = load_model(path, device="cpu", dtype=dtype, progress=False).model
    return model.forward(torch.tensor(IDS), torch.arange(len(IDS)), None)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
@pytest.mark.parametrize("make", [llama, qwen3], ids=["llama", "qwen3"])
def test_gguf_gives_the_logits_of_its_dequantised_weights(
    tmp_path: Path, make: Callable[..., Any], kind: Kind
) -> None:
    reference = make()
    stored = write_gguf(tmp_path / "m.gguf", reference, kind)
    reference.load_state_dict({name: torch.from_numpy(w) for name, w in stored.items()})
    torch.testing.assert_close(
        our_logits(tmp_path / "m.gguf"),
        reference_logits(reference, IDS),
        atol=TOLERANCE,
        rtol=TOLERANCE,
    )


def test_tied_gguf_shares_the_embedding(tmp_path: Path) -> None:
    reference = llama(tie_word_embeddings=True)
    write_gguf(tmp_path / "m.gguf", reference)
    loaded = load_model(tmp_path, device="cpu", dtype="float32", progress=False)
    assert loaded.model.lm_head.weight is loaded.model.embedding
    torch.testing.assert_close(
        our_logits(tmp_path), reference_logits(reference, IDS), atol=TOLERANCE, rtol=TOLERANCE
    )


def test_gguf_rope_divisors_are_applied(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    reference = llama()
    reference.model.rotary_emb.inv_freq /= torch.from_numpy(divisors)
    write_gguf(
        tmp_path / "m.gguf",
        reference,
        extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors),
    )
    torch.testing.assert_close(
        our_logits(tmp_path), reference_logits(reference, IDS), atol=TOLERANCE, rtol=TOLERANCE
    )


def q4_k_values(block: bytes) -> list[float]:
    """One Q4_K block by the layout in ggml-common.h: d, dmin, 12 bytes of 6-bit scales and mins,
    128 bytes of 4-bit values."""
    d, dmin = struct.unpack("<2e", block[:4])
    packed, nibbles = block[4:16], block[16:]
    out: list[float] = []
    for group in range(8):
        if group < 4:
            scale, low = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4
            low = packed[group + 4] >> 4 | (packed[group] >> 6) << 4
        for n in range(32):
            byte = nibbles[group // 2 * 32 + n]
            value = byte >> 4 if group % 2 else byte & 15
            out.append(d * scale * value - dmin * low)
    return out


def q6_k_values(block: bytes) -> list[float]:
    """One Q6_K block: 128 bytes of low nibbles, 64 of high pairs, 16 int8 scales, d."""
    low, high, scales = block[:128], block[128:192], struct.unpack("<16b", block[192:208])
    (d,) = struct.unpack("<e", block[208:])
    out = [0.0] * 256
    for half in range(2):
        for n in range(32):
            pair = high[half * 32 + n]
            for quarter in range(4):
                byte = low[half * 64 + quarter % 2 * 32 + n]
                value = byte >> 4 if quarter >= 2 else byte & 15
                value |= (pair >> 2 * quarter & 3) << 4
                scale = scales[half * 8 + quarter * 2 + n // 16]
                out[half * 128 + quarter * 32 + n] = d * scale * (value - 32)
    return out


@pytest.mark.parametrize(
    ("kind", "values_of"), [(Kind.Q4_K, q4_k_values), (Kind.Q6_K, q6_k_values)]
)
def test_k_quants_are_dequantised_by_their_block_layout(
    tmp_path: Path, kind: Kind, values_of: Callable[[bytes], list[float]]
) -> None:
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (6, 2 * block_bytes), dtype=np.uint8)
    small = np.frombuffer(np.float16(0.01).tobytes() * 2, dtype=np.uint8)
    for begin in (0, block_bytes):  # finite scales
        if kind is Kind.Q4_K:
            raw[:, begin : begin + 4] = small
        else:
            raw[:, begin + block_bytes - 2 : begin + block_bytes] = small[:2]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = GGUFSource(GGUFParts(tmp_path / "m.gguf"), LLAMA)
    out = torch.empty(6, 512)
    source.copy_into("t", out)
    for row, packed in zip(out, raw, strict=True):
        blocks = [bytes(packed[:block_bytes]), bytes(packed[block_bytes:])]
        exact = [value for block in blocks for value in values_of(block)]
        torch.testing.assert_close(row, torch.tensor(exact), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_way_to_a_device_gives_what_the_host_gets(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, is_turned: bool
) -> None:
    monkeypatch.setattr(weights_gguf, "_PIECE_ELEMENTS", 640)  # ten rows
    packed = gguf.quants.quantize(np.random.default_rng(3).random((57, 64), np.float32), Kind.Q8_0)
    row_index = torch.arange(56, -1, -1) if is_turned else None
    whole, by_pieces = torch.empty(57, 64, dtype=dtype), torch.empty(57, 64, dtype=dtype)
    _C.dequantize(packed, "Q8_0", whole, row_index)
    weights_gguf._fill_by_pieces(packed, "Q8_0", by_pieces, row_index)
    assert torch.equal(by_pieces, whole)


def test_large_tensors_are_filled_whole_from_many_pieces(tmp_path: Path) -> None:
    values = np.arange(3000 * 64, dtype=np.float32).reshape(3000, 64) / 4
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", values.astype(np.float16), raw_dtype=Kind.F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = GGUFSource(GGUFParts(tmp_path / "m.gguf"), LLAMA)
    expected = torch.from_numpy(values.astype(np.float16).astype(np.float32))
    plain, turned = torch.empty(3000, 64), torch.empty(3000, 64)
    source.copy_into("t", plain)
    source.copy_into("t", turned, torch.arange(2999, -1, -1))
    assert torch.equal(plain, expected)
    assert torch.equal(turned, expected.flip(0))


@pytest.mark.parametrize(("n_heads", "head_dim"), [(1, 4), (3, 8), (2, 2)])
def test_interleaving_is_the_converters_own(n_heads: int, head_dim: int) -> None:
    rows = np.arange(n_heads * head_dim, dtype=np.float32)[:, None]
    out = torch.empty(n_heads * head_dim, 1)
    out[interleaved_rows(n_heads, head_dim, head_dim)] = torch.from_numpy(rows)
    assert torch.equal(out, torch.from_numpy(llama_interleaved(rows, n_heads)))


def saved(folder: Path, **options: Any) -> Path:
    llama().save_pretrained(folder, **options)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_model(path, device="cpu", dtype="float32", progress=False)
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.self_attn.k_proj.weight", "lm_head.weight"]
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    rewrite(saved(tmp_path), lambda tensors: tensors.__delitem__(name))
    assert f"tensor '{name}' is missing" in refused(tmp_path)


@pytest.mark.parametrize("name", ["model.layers.9.mlp.up_proj.weight", "model.vision.weight"])
def test_an_extra_tensor_is_named_with_its_file(tmp_path: Path, name: str) -> None:
    rewrite(saved(tmp_path), lambda tensors: tensors.update({name: torch.zeros(2)}))
    message = refused(tmp_path)
    assert name in message
    assert "model.safetensors" in message


def test_tensors_that_old_checkpoints_carry_are_passed_over(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(saved(tmp_path), lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert our_logits(tmp_path).isfinite().all()


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    rewrite(saved(tmp_path), lambda tensors: tensors.update({name: torch.zeros(64, 95)}))
    message = refused(tmp_path)
    assert name in message
    assert "[64, 95]" in message
    assert "[64, 96]" in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "lm_head.weight",
    ],
)
def test_a_tensor_with_a_value_that_is_not_finite_is_named(
    tmp_path: Path, name: str, bad: float
) -> None:
    rewrite(saved(tmp_path), lambda tensors: tensors[name].view(-1).__setitem__(-1, bad))
    message = refused(tmp_path)
    assert f"model.safetensors: tensor '{name}' holds NaN or infinite values" in message
    assert "float16" not in message


def test_a_value_beyond_float16_says_which_dtype_holds_it(tmp_path: Path) -> None:
    name = "model.norm.weight"
    rewrite(saved(tmp_path), lambda tensors: tensors[name].fill_(70000.0))
    with pytest.raises(ModelLoadError, match="--dtype bfloat16"):
        our_logits(tmp_path, "float16")
    our_logits(tmp_path, "bfloat16")


def test_tensors_may_begin_at_any_byte(tmp_path: Path) -> None:
    path = saved(tmp_path) / "model.safetensors"
    expected = our_logits(tmp_path)
    raw = path.read_bytes()
    n_header = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + n_header].rstrip() + b" " * (1 + -len(raw[8 : 8 + n_header].rstrip()) % 2)
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + n_header :])
    assert torch.equal(our_logits(tmp_path), expected)


def test_an_integer_tensor_is_refused(tmp_path: Path) -> None:
    name = "model.norm.weight"
    rewrite(
        saved(tmp_path), lambda tensors: tensors.update({name: torch.zeros(64, dtype=torch.int32)})
    )
    message = refused(tmp_path)
    assert name in message
    assert "I32" in message


@pytest.mark.parametrize("n_bytes", [0, 7, 8, 400, -1])
def test_a_truncated_file_is_named(tmp_path: Path, n_bytes: int) -> None:
    path = saved(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:n_bytes])
    message = refused(tmp_path)
    assert "model.safetensors" in message
    assert "Fetch it again" in message


def sharded(folder: Path) -> tuple[Path, dict[str, Any]]:
    saved(folder, max_shard_size="40KB")
    path = folder / "model.safetensors.index.json"
    return path, json.loads(path.read_text())


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    _, index = sharded(tmp_path)
    shard = sorted(set(index["weight_map"].values()))[1]
    (tmp_path / shard).unlink()
    assert shard in refused(tmp_path)


def test_an_index_entry_that_lies_is_named(tmp_path: Path) -> None:
    path, index = sharded(tmp_path)
    shards = sorted(set(index["weight_map"].values()))
    name = next(n for n, shard in index["weight_map"].items() if shard == shards[0])
    index["weight_map"][name] = shards[1]
    path.write_text(json.dumps(index))
    message = refused(tmp_path)
    assert name in message
    assert shards[1] in message


def test_a_tensor_that_the_index_leaves_out_is_named(tmp_path: Path) -> None:
    path, index = sharded(tmp_path)
    shards = list(index["weight_map"].values())
    name = next(n for n, shard in index["weight_map"].items() if shards.count(shard) > 1)
    shard = index["weight_map"].pop(name)
    path.write_text(json.dumps(index))
    message = refused(tmp_path)
    assert f"{shard}: holds tensor '{name}', which" in message


def test_a_table_that_old_shards_carry_needs_no_entry(tmp_path: Path) -> None:
    _, index = sharded(tmp_path)
    path = tmp_path / index["weight_map"]["model.norm.weight"]
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    save_file({**load_file(path), **extra}, path)
    assert our_logits(tmp_path).isfinite().all()


@pytest.mark.parametrize("file_name", ["../../etc/passwd", "/etc/passwd", 7, "a/b.safetensors"])
def test_an_index_cannot_point_out_of_the_folder(tmp_path: Path, file_name: Any) -> None:
    path, index = sharded(tmp_path)
    index["weight_map"]["model.norm.weight"] = file_name
    path.write_text(json.dumps(index))
    assert "no file name of this folder" in refused(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": 3}', "[" * 100000])
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    path, _ = sharded(tmp_path)
    path.write_text(text)
    assert "model.safetensors.index.json" in refused(tmp_path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    message = refused(tmp_path)
    assert "pickled" in message
    assert "convert" in message


class _Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pickle_is_not_executed_whatever_its_name(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    marker = tmp_path / "executed"
    (tmp_path / name).write_bytes(pickle.dumps(_Bomb(marker)))
    refused(tmp_path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(_Bomb(marker)))
    assert marker.exists(), "the bomb is none"


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0])
def test_a_gguf_tensor_with_a_value_that_is_not_finite_is_named(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, llama(), kind)
    tensor = GGUFFile(path).tensors["blk.1.ffn_down.weight"]
    raw = bytearray(path.read_bytes())
    infinity = {Kind.F32: b"\0\0\x80\x7f"}.get(kind, b"\0\x7c")  # the scale of a Q8_0 block
    raw[tensor.offset : tensor.offset + len(infinity)] = infinity
    path.write_bytes(raw)
    assert f"{path}: tensor 'blk.1.ffn_down.weight' holds NaN or infinite" in refused(path)


@pytest.mark.parametrize("type_name", _C.BLOCK_FORMATS)
def test_a_block_is_sound_as_long_as_its_values_are_finite(type_name: str) -> None:
    n_values, n_bytes = _C.BLOCK_FORMATS[type_name]
    tensor = GGUFTensor("t", (1, n_values), type_name, 0, n_bytes, n_bytes)
    rng = np.random.default_rng(5)
    n_sound = 0
    for at in range(200):
        packed = rng.integers(0, 256, (1, n_bytes), dtype=np.uint8)
        packed[0, (at + 1) % n_bytes] |= 0x7C  # somewhere, a scale that is not finite
        out = torch.empty(1, n_values)
        _C.dequantize(packed, type_name, out)
        is_sound = weights_gguf._is_sound(packed, tensor, out)
        if is_sound:
            assert out.isfinite().all()
        n_sound += is_sound
    assert 0 < n_sound < 200


def test_a_gguf_without_a_needed_tensor_is_named(tmp_path: Path) -> None:
    reference = llama()
    write_gguf(tmp_path / "m.gguf", reference)
    config = tmp_path / "m.gguf"
    renamed = config.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight")
    config.write_bytes(renamed)
    message = refused(config)
    assert "model.layers.1.mlp.up_proj.weight" in message
    assert "m.gguf" in message
