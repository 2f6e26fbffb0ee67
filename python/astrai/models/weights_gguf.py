"""Weights of a GGUF file, dequantised tensor by tensor into the serving dtype.

`_C.dequantize` writes a tensor's rows straight into their place, in several threads and without
the interpreter lock; on a GPU a piece at a time lies in host memory on the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from astrai import _C
from astrai.models.errors import ModelLoadError
from astrai.models.families import Family, LayerNames
from astrai.models.gguf_file import GGUFTensor
from astrai.models.gguf_parts import GGUFParts
from astrai.models.tensor_copy import is_finite
from astrai.models.weights import not_finite

__all__ = ["GGUF_TOP_NAMES", "GGUFSource", "gguf_layer_names", "read_vector"]

_PIECE_ELEMENTS = 16 << 20  # of a tensor on its way to another device

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


# Bytes of a block at which its float16 scales begin, as ggml-common.h lays it out.
_SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


class GGUFSource:
    """`WeightSource` over a GGUF file or its parts."""

    norm_offset = 0.0

    def __init__(self, parts: GGUFParts, family: Family) -> None:
        """family: whose names and order of q and k rows the file follows.
        Raises ModelLoadError for a tensor of a type that is not read."""
        self.rows_interleaved = family.gguf_rows_interleaved
        self._parts = parts
        layer_names = gguf_layer_names(family.layer)
        self._tensors = {
            _canonical(name, layer_names): tensor
            for name, tensor in parts.tensors.items()
            if name not in _NOT_WEIGHTS
        }
        if family.layer.experts is not None:
            # The one row of this matrix is stored as a vector by some.
            gate = f".{family.layer.experts.shared_gate}.weight"
            for name, tensor in self._tensors.items():
                if name.endswith(gate) and len(tensor.shape) == 1:
                    self._tensors[name] = replace(tensor, shape=(1, *tensor.shape))
        for tensor in self._tensors.values():
            _check_type(parts, tensor)

    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def n_bytes(self, name: str) -> int:
        return self._tensors[name].n_bytes

    def where(self, name: str | None = None) -> str:
        file = self._parts if name is None else self._parts.file_of(self._tensors[name])
        return str(file.path)

    def copy_into(
        self, name: str, out: torch.Tensor, row_index: torch.Tensor | None = None
    ) -> None:
        tensor = self._tensors[name]
        if out.dim() == 1 and row_index is not None:
            # A vector is one row of the file but as many rows of `out`.
            whole = torch.empty_like(out)
            self._fill(tensor, 0, whole.view(1, -1), None)
            out.index_copy_(0, row_index, whole)
        else:
            matrices = out.unbind(0) if out.dim() == 3 else (out,)  # those of experts lie apart
            n_rows = tensor.n_bytes // tensor.row_bytes // len(matrices)
            for number, matrix in enumerate(matrices):
                self._fill(tensor, number * n_rows, matrix.view(n_rows, -1), row_index)
        file = self._parts.file_of(tensor)
        if not _is_sound(file.rows(tensor, 0, tensor.n_bytes // tensor.row_bytes), tensor, out):
            raise not_finite(file.path, tensor.name, out.dtype)
        file.forget_pages()

    def _fill(
        self, tensor: GGUFTensor, first: int, out: torch.Tensor, row_index: torch.Tensor | None
    ) -> None:
        """Write out's rows, [n_rows, row length], which are those of the file from `first` on."""
        file, n_rows = self._parts.file_of(tensor), out.shape[0]
        packed = file.rows(tensor, first, first + n_rows)
        if out.device.type == "cpu":
            _C.dequantize(packed, tensor.type_name, out, row_index)
        else:
            _fill_by_pieces(packed, tensor.type_name, out, row_index)


def _is_sound(packed: npt.NDArray[np.uint8], tensor: GGUFTensor, out: torch.Tensor) -> bool:
    """Are the tensor's values, read into out, finite? packed: its rows in the file."""
    scales = _SCALES.get(tensor.type_name)
    if scales is None:  # no blocks
        return is_finite(out)
    blocks = packed.reshape(-1, _C.BLOCK_FORMATS[tensor.type_name][1])
    # Whole numbers times finite scales are finite: a twentieth of the bytes says it all.
    return not any(((blocks[:, at + 1] & 0x7C) == 0x7C).any() for at in scales)


def _fill_by_pieces(
    packed: npt.NDArray[np.uint8],
    type_name: str,
    out: torch.Tensor,
    row_index: torch.Tensor | None,
) -> None:
    """As `_C.dequantize`, for a tensor on any device."""
    piece_rows = max(1, _PIECE_ELEMENTS // out.shape[1])
    for begin in range(0, len(packed), piece_rows):
        rows = packed[begin : begin + piece_rows]
        piece = torch.empty((len(rows), out.shape[1]), dtype=out.dtype)
        _C.dequantize(rows, type_name, piece)
        if row_index is None:
            out[begin : begin + len(rows)].copy_(piece)
        else:
            out.index_copy_(0, row_index[begin : begin + len(rows)], piece.to(out.device))


def read_vector(parts: GGUFParts, name: str) -> tuple[float, ...] | None:
    """The values of a small one-dimensional tensor, None where there is none of that name."""
    tensor = parts.tensors.get(name)
    if tensor is None:
        return None
    _check_type(parts, tensor)
    file = parts.file_of(tensor)
    if len(tensor.shape) != 1:
        raise ModelLoadError(file.path, f"tensor {name!r} has shape {list(tensor.shape)}.")
    values = torch.empty((1, tensor.shape[0]))
    _C.dequantize(file.rows(tensor, 0, 1), tensor.type_name, values)
    return tuple(values[0].tolist())


def _check_type(parts: GGUFParts, tensor: GGUFTensor) -> None:
    if tensor.type_name not in _C.BLOCK_FORMATS:
        raise ModelLoadError(
            parts.file_of(tensor).path,
            f"tensor {tensor.name!r} has type {tensor.type_name}; read are "
            f"{', '.join(_C.BLOCK_FORMATS)}.",
            "Use another quantisation of this model, such as Q8_0 or Q4_K.",
        )


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
