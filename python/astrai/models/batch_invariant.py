"""A model whose logits for a text do not depend on what else is computed with it, to the bit.

Same weights, same memory. Its products are those of `fixed_products.py`; attention computes each
position in one way, and the other operations work row by row. On a GPU the attention kernels are
that way already, as long as a position always comes to the same one of the two, which is the
scheduler's part. On a CPU every row, of a prompt or generated, is attended by the decode kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from astrai.extension import ops
from astrai.kvcache import rows_as_requests
from astrai.models.decoder import CausalLM, DecoderLayer
from astrai.models.experts import Gate, mix_by_expert
from astrai.models.fixed_products import CheckedProducts, cpu_product
from astrai.models.layers_cpu import CpuLayers
from astrai.models.layers_cuda import CudaLayers
from astrai.models.linear import CPU_DTYPES, Linear, Product
from astrai.models.mlp import GatedMLP, SparseMLP
from astrai.models.workspace import Workspace

if TYPE_CHECKING:
    from astrai.kvcache import KVCache

__all__ = ["batch_invariant", "variance_reason"]


def variance_reason(model: CausalLM) -> str | None:
    """Why the logits of this model would depend on the batch all the same, or None."""
    config, dtype = model.config, model.dtype
    if model.device.type == "cpu":
        if dtype not in CPU_DTYPES:
            return f"{dtype} on a CPU; use float32 or bfloat16"
        if config.head_dim % 16:
            return f"heads of {config.head_dim} on a CPU; there they must be a multiple of 16"
        return None
    if config.experts is not None:
        return "experts on a GPU; serve this model on a CPU"
    if model.device.type != "cuda":
        return f"the device {model.device.type}; use cpu or cuda"
    reasons = [CudaLayers.unavailable_reason(dtype)]
    for kernel in ("attn_paged_decode", "attn_paged_prefill"):
        reasons.append(ops.unavailable_reason(kernel, dtype, config.head_dim))
    return next((reason for reason in reasons if reason is not None), None)


def batch_invariant(model: CausalLM) -> CausalLM:
    """The model over the same weights. On a GPU this checks the products, which takes about a
    second. Raises ValueError with the reason where there is one, RuntimeError where the library's
    products fail the check altogether."""
    reason = variance_reason(model)
    if reason is not None:
        raise ValueError(f"batch_invariant does not work with {reason}")
    is_cpu = model.device.type == "cpu"
    product: Product = cpu_product
    if not is_cpu:
        product = CheckedProducts(_linears(model))
        torch.cuda.empty_cache()  # what the checks took
    kind = RowByRowLM if is_cpu else CausalLM
    return kind(
        model.config,
        model.embedding,
        [_with_product(layer, product) for layer in model.layers],
        model.final_norm,
        replace(model.lm_head, product=product),
        model.rotary,
        model.local_rotary,
        RowByRowLayers() if is_cpu else UnjoinedLayers(),
    )


class RowByRowLM(CausalLM):
    """On a CPU: to attention each row is a request of its own that decodes its last token."""

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        kv_cache: KVCache | None,
        fwd: str = "prefill",
        logits_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if kv_cache is not None:
            kv_cache, fwd = rows_as_requests(kv_cache), "decode"
        return super().forward(input_ids, position_ids, kv_cache, fwd, logits_indices)

    __call__ = forward

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        # torch's tanh rounds by how it cuts all rows together into vectors.
        for row in torch.split(logits, 1):
            super()._scaled(row)
        return logits


class RowByRowLayers(CpuLayers):
    """The experts' products are the fixed ones, too."""

    def mix_experts(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        gate: Gate,
        space: Workspace,
    ) -> torch.Tensor:
        return mix_by_expert(x, ids, weights, gate_up, down, gate, cpu_product)


class UnjoinedLayers(CudaLayers):
    """Products stand alone: those that are joined with others are not among the checked ones."""

    def max_joined_rows(self, row_len: int) -> int:
        return 0


def _linears(model: CausalLM) -> Iterator[Linear]:
    """Those of a model without experts."""
    for layer in model.layers:
        yield from (layer.qkv, layer.o)
        if isinstance(layer.mlp, GatedMLP):
            yield from (layer.mlp.gate_up, layer.mlp.down)
    yield model.lm_head


def _with_product(layer: DecoderLayer, product: Product) -> DecoderLayer:
    return replace(
        layer,
        qkv=replace(layer.qkv, product=product),
        o=replace(layer.o, product=product),
        mlp=_mlp_with(layer.mlp, product),
    )


def _mlp_with(mlp: GatedMLP | SparseMLP, product: Product) -> GatedMLP | SparseMLP:
    if isinstance(mlp, GatedMLP):
        return _gated_with(mlp, product)
    return replace(
        mlp,
        router=replace(mlp.router, product=product),
        shared=None if mlp.shared is None else _gated_with(mlp.shared, product),
        shared_gate=None if mlp.shared_gate is None else replace(mlp.shared_gate, product=product),
    )


def _gated_with(mlp: GatedMLP, product: Product) -> GatedMLP:
    return replace(
        mlp,
        gate_up=replace(mlp.gate_up, product=product),
        down=replace(mlp.down, product=product),
    )
