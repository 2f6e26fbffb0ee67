"""Weights of a GGUF file, dequantised tensor by tensor into the serving dtype.

Block formats are the `gguf` package's; this module gives it some rows at a time, so that the
float32 intermediate stays small, and spreads the pieces over threads (numpy releases the
interpreter lock in part of its loops)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from astrai.models.errors import ModelLoadError
from astrai.models.families import Family, LayerNames
from astrai.models.gguf_file import GGUFFile, GGUFTensor

__all__ = ["GGUF_TOP_NAMES", "GGUFSource", "gguf_layer_names", "read_vector"]

# float32 values dequantised at a time. Larger pieces spread the cost of numpy's dozen calls.
_PIECE_ELEMENTS = 1024 * 1024

GGUF_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
# Part of the RoPE settings.
_NOT_WEIGHTS = {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}


def gguf_layer_names(layer: LayerNames) -> dict[str, str]:
    """The modules of a layer by their names in GGUF files, which follow what a module does."""
    names = {
        "attn_norm": layer.input_norm,
        "post_attention_norm": layer.attention_norm,
        "ffn_norm": layer.mlp_input_norm,
        "post_ffw_norm": layer.mlp_norm,
        "attn_q_norm": layer.q_norm,
        "attn_k_norm": layer.k_norm,
        "attn_output": layer.o,
        "ffn_down": layer.down,
    }
    qkv = ("attn_q", "attn_k", "attn_v") if len(layer.qkv) == 3 else ("attn_qkv",)
    gate_up = ("ffn_gate", "ffn_up") if len(layer.gate_up) == 2 else ("ffn_up",)
    names.update(zip(qkv, layer.qkv, strict=True))
    names.update(zip(gate_up, layer.gate_up, strict=True))
    experts = layer.experts
    if experts is not None:
        names.update(
            ffn_gate_inp=experts.router,
            ffn_gate_exps=f"{experts.experts}.{experts.gate}",
            ffn_up_exps=f"{experts.experts}.{experts.up}",
            ffn_down_exps=f"{experts.experts}.{experts.down}",
            ffn_gate_shexp=experts.shared_gate_up[0],
            ffn_up_shexp=experts.shared_gate_up[1],
            ffn_down_shexp=experts.shared_down,
            ffn_gate_inp_shexp=experts.shared_gate,
        )
    return {short: module for short, module in names.items() if module is not None}


class GGUFSource:
    """`WeightSource` over a GGUF file."""

    norm_offset = 0.0

    def __init__(self, file: GGUFFile, family: Family) -> None:
        """family: whose names and order of q and k rows the file follows.
        Raises ModelLoadError for a tensor of a type that cannot be dequantised."""
        self.rows_interleaved = family.gguf_rows_interleaved
        self._file = file
        layer_names = gguf_layer_names(family.layer)
        self._tensors = {
            _canonical(name, layer_names): tensor
            for name, tensor in file.tensors.items()
            if name not in _NOT_WEIGHTS
        }
        if family.layer.experts is not None:
            # The one row of this matrix is stored as a vector by some.
            gate = f".{family.layer.experts.shared_gate}.weight"
            for name, tensor in self._tensors.items():
                if name.endswith(gate) and len(tensor.shape) == 1:
                    self._tensors[name] = replace(tensor, shape=(1, *tensor.shape))
        self._pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "gguf")
        for tensor in self._tensors.values():
            if not _is_readable(tensor.type_name):
                raise ModelLoadError(
                    file.path,
                    f"tensor {tensor.name!r} has type {tensor.type_name}, which the gguf package "
                    f"cannot dequantise.",
                    "Use another quantisation, such as Q8_0 or Q4_K.",
                )

    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def n_bytes(self, name: str) -> int:
        return self._tensors[name].n_bytes

    def where(self, name: str | None = None) -> str:
        return str(self._file.path)

    def copy_into(
        self, name: str, out: torch.Tensor, row_index: torch.Tensor | None = None
    ) -> None:
        tensor = self._tensors[name]
        n_rows = tensor.n_bytes // tensor.row_bytes
        # A vector is one row of the file but as many rows of `out`, hence its own path.
        if out.dim() == 1:
            values = torch.from_numpy(_read(self._file, tensor, 0, 1)[0]).to(out.device, out.dtype)
            out.copy_(values) if row_index is None else out.index_copy_(0, row_index, values)
            return
        piece_rows = max(1, _PIECE_ELEMENTS // tensor.shape[-1])
        matrices = out.unbind(0) if out.dim() == 3 else (out,)  # those of experts are apart
        rows_each = n_rows // len(matrices)

        def fill(place: tuple[int, int]) -> None:
            matrix_idx, begin = place
            end = min(begin + piece_rows, rows_each)
            first = matrix_idx * rows_each
            values = _read(self._file, tensor, first + begin, first + end)
            rows = matrices[matrix_idx]
            if row_index is not None:
                rows[row_index[begin:end]] = torch.from_numpy(values).to(out.device, out.dtype)
            elif out.dtype == torch.float32 and out.device.type == "cpu":
                # numpy copies in this thread; torch would start an OpenMP team in each.
                np.copyto(rows[begin:end].numpy(), values)
            else:
                rows[begin:end].copy_(torch.from_numpy(values))

        places = product(range(len(matrices)), range(0, rows_each, piece_rows))
        for _ in self._pool.map(fill, places):
            pass  # waits, and raises what a thread raised
        self._file.forget_pages()


def read_vector(file: GGUFFile, tensor: GGUFTensor) -> tuple[float, ...]:
    """The values of a small one-dimensional tensor."""
    if len(tensor.shape) != 1 or not _is_readable(tensor.type_name):
        raise ModelLoadError(file.path, f"tensor {tensor.name!r} is no vector of numbers.")
    return tuple(_read(file, tensor, 0, 1)[0].tolist())


def _is_readable(type_name: str) -> bool:
    # A type without a dequantiser raises NotImplementedError, whatever the block holds.
    kind = GGMLQuantizationType[type_name]
    block_bytes = GGML_QUANT_SIZES[kind][1]
    try:
        quants.dequantize(np.zeros((1, block_bytes), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _read(file: GGUFFile, tensor: GGUFTensor, begin: int, end: int) -> npt.NDArray[np.float32]:
    """float32 [end - begin, row] of a tensor's rows."""
    packed = file.rows(tensor, begin, end)
    if tensor.type_name == "F32":
        floats: npt.NDArray[np.float32] = packed.view(
            "<f4"
        ).copy()  # torch takes no read-only views
        return floats
    with np.errstate(all="ignore"):  # a scale that is inf or NaN is the file's own business
        values = quants.dequantize(packed, GGMLQuantizationType[tensor.type_name])
    return np.asarray(values, dtype=np.float32)


def _canonical(name: str, layer_names: dict[str, str]) -> str:
    """The canonical name of a GGUF tensor, or the name itself where there is none."""
    if name in GGUF_TOP_NAMES:
        return GGUF_TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer_id, short, suffix] if layer_id.isdecimal() and short in layer_names:
            return f"model.layers.{int(layer_id)}.{layer_names[short]}.{suffix}"
        case ["blk", layer_id, short, expert, suffix] if (  # old files: each expert by itself
            layer_id.isdecimal() and expert.isdecimal() and f"{short}_exps" in layer_names
        ):
            experts, _, projection = layer_names[f"{short}_exps"].rpartition(".")
            return f"model.layers.{int(layer_id)}.{experts}.{int(expert)}.{projection}.{suffix}"
    return name
