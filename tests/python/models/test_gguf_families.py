"""GGUF files of every family: the names of tensors, and logits in every kind of quantisation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from toy_models import (
    gemma2,
    gemma3,
    glm4,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    reference_logits,
    write_gguf,
)
from transformers import PreTrainedModel

from astrai.models import ModelLoadError, load_model
from astrai.models.families import Family
from astrai.models.registry import FAMILIES
from astrai.models.weights_gguf import GGUF_TOP_NAMES, gguf_layer_names

TOLERANCE = 1e-4  # float32 sums in another order, on logits of size 10
IDS = [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 3, 17, 90, 4, 4, 61, 33, 8, 71, 25]

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "llama_tied": lambda: llama(tie_word_embeddings=True),
    "llama_biased": lambda: llama(attention_bias=True),
    "qwen2": qwen2,
    "qwen3": qwen3,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": lambda: qwen3_moe(norm_topk_prob=True),
    "phi3": lambda: phi3(sliding_window=7),
    "olmo2": olmo2,
    "granite": granite,
    "glm4": glm4,
    # The patterns and the local base that GGUF files of these do not spell out.
    "gemma2": lambda: gemma2(query_pre_attn_scalar=32),
    "gemma3": lambda: gemma3(
        query_pre_attn_scalar=32, num_hidden_layers=7, sliding_window_pattern=6
    ),
}
# transformers keeps experts fused, so their quantised weights have no place there.
FUSED = ("mixtral", "qwen2_moe", "qwen3_moe")
CASES = [(name, Kind.F32 if name in FUSED else Kind.Q8_0) for name in MODELS]
CASES += [("llama", kind) for kind in (Kind.F32, Kind.Q5_0, Kind.Q5_1)]


def our_logits(path: Path) -> torch.Tensor:
    model = load_model(path, device="cpu", dtype="float32", progress=False).model
    return model.forward(torch.tensor(IDS), torch.arange(len(IDS)), None)


def assert_alike(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{n}_{k.name}" for n, k in CASES])
def test_logits_are_those_of_a_folder_with_the_dequantised_weights(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    reference = MODELS[name]()
    stored = write_gguf(tmp_path / "m.gguf", reference, kind)
    with torch.no_grad():
        for weight_name, weight in reference.named_parameters():
            if weight_name in stored and "norm" not in weight_name:  # norms stay float32
                weight.copy_(torch.from_numpy(stored[weight_name]))
    reference.save_pretrained(tmp_path / "folder")
    ours = our_logits(tmp_path / "m.gguf")
    assert_alike(ours, our_logits(tmp_path / "folder"))
    assert_alike(ours, reference_logits(reference, IDS))


@pytest.mark.parametrize(
    "family",
    [family for family in FAMILIES if family.gguf_architecture and family.layer.experts is None],
    ids=lambda family: str(family.name),
)
def test_tensors_have_the_names_that_the_gguf_package_gives_them(family: Family) -> None:
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[family.gguf_architecture]
    names = gguf.get_tensor_name_map(arch, 2)
    layer = gguf_layer_names(family.layer)
    ours = {f"model.layers.1.{module}": f"blk.1.{short}" for short, module in layer.items()}
    for name, hf_name in GGUF_TOP_NAMES.items():
        ours[hf_name.removesuffix(".weight")] = name.removesuffix(".weight")
    if family.qk_norm is None:
        ours = {hf: name for hf, name in ours.items() if not hf.endswith(("q_norm", "k_norm"))}
    if gguf.MODEL_TENSOR.OUTPUT not in gguf.MODEL_TENSORS[arch]:  # always tied
        del ours["lm_head"]
    assert {hf: names.get_name(hf) for hf in ours} == ours


def test_a_llama_file_with_a_window_is_a_mistral(tmp_path: Path) -> None:
    reference = mistral(sliding_window=6)
    reference.config.model_type = "llama"  # as the usual converter names it
    write_gguf(tmp_path / "m.gguf", reference)
    assert_alike(our_logits(tmp_path), reference_logits(reference, IDS))


def test_a_window_of_zero_is_none(tmp_path: Path) -> None:
    reference = phi3()
    write_gguf(tmp_path / "m.gguf", reference, extra=lambda writer: writer.add_sliding_window(0))
    assert_alike(our_logits(tmp_path), reference_logits(reference, IDS))


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.4, 1.5, 1.6],
    "long_factor": [2.0, 2.1, 2.3, 2.4, 2.5, 2.6],
    "partial_rotary_factor": 0.75,
    "rope_theta": 10000.0,
}


def test_longrope_factors_are_read(tmp_path: Path) -> None:
    reference = phi3(rope_parameters=LONGROPE, original_max_position_embeddings=16)

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_dimension_count(12)
        writer.add_rope_scaling_orig_ctx_len(16)
        for length in ("short", "long"):
            factors = np.array(LONGROPE[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)

    write_gguf(tmp_path / "m.gguf", reference, extra=extra)
    assert_alike(our_logits(tmp_path), reference_logits(reference, IDS))


def test_yarn_is_read(tmp_path: Path) -> None:
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 10000.0,
    }
    reference = qwen2(rope_parameters=yarn)

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    write_gguf(tmp_path / "m.gguf", reference, extra=extra)
    assert_alike(our_logits(tmp_path), reference_logits(reference, IDS))


def test_templates_of_a_file_have_their_names(tmp_path: Path) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(
            [
                {"name": "default", "template": "plain"},
                {"name": "tool_use", "template": "{{ tools | length }}"},
            ]
        )

    write_gguf(tmp_path / "m.gguf", llama(), extra=extra)
    template = load_model(tmp_path, device="cpu", dtype="float32", progress=False).chat_template
    assert template is not None
    tool = {"type": "function", "function": {"name": "f"}}
    assert template.render([{"role": "user", "content": "x"}]) == "plain"
    assert template.render([{"role": "user", "content": "x"}], [tool]) == "1"


def test_a_type_that_is_not_read_is_named_with_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, llama(hidden_size=256), Kind.Q8_0)
    # The type of a tensor stands behind its name and two sizes.
    raw, name = bytearray(path.read_bytes()), b"blk.0.attn_q.weight"
    at = raw.index(name) + len(name) + 4 + 2 * 8
    raw[at : at + 4] = Kind.Q8_K.value.to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_q\.weight.*Q8_K; read are F32.*Q6_K"):
        load_model(path, device="cpu", progress=False)
