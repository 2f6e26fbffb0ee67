"""What a checkpoint holds beside its weights: configuration, tokenizer, chat template, end ids.

`open_folder` reads a Hugging Face folder, `open_gguf` a GGUF file; both give a `Checkpoint`, whose
tensors are still on disk. Every fault is a ModelLoadError that names the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from astrai.models.config import ModelConfig
from astrai.models.config_gguf import RopeVectors, config_from_gguf
from astrai.models.config_hf import config_from_hf
from astrai.models.errors import ModelLoadError
from astrai.models.generation_config import read_generation_config
from astrai.models.gguf_parts import GGUFParts
from astrai.models.registry import family_named, family_of_gguf
from astrai.models.renamed_weights import RenamedSource
from astrai.models.weights import WeightSource
from astrai.models.weights_gguf import GGUFSource, read_vector
from astrai.models.weights_hf import SafetensorsSource, read_json_object, sum_by
from astrai.text import ChatTemplate, Tokenizer
from astrai.text.gguf_tokenizer import tokenizer_from_gguf
from astrai.text.hf_tokenizer import (
    named_templates,
    special_tokens_of,
    template_sources,
    tokenizer_from_folder,
)

__all__ = ["Checkpoint", "open_folder", "open_gguf"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint."""

    config: ModelConfig
    weights: WeightSource
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    end_ids: tuple[int, ...]  # ids that end a text, from every file that names them
    format: str  # "safetensors" or "gguf"
    # Tensors that text does not need, by module: they are not loaded.
    left_out: Mapping[str, int] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)  # of generation_config.json
    stored_bytes: Mapping[str, int] = field(default_factory=dict)  # by the files' own types
    template_source: str | None = None  # file or key that chat_template is from


def open_folder(folder: Path) -> Checkpoint:
    """Open a folder with config.json and safetensors."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelLoadError(
            folder, "has no config.json.", "Name a Hugging Face model folder or a .gguf file."
        )
    raw = read_json_object(path)
    config = _naming(path, lambda: config_from_hf(raw))
    family = family_named(config.architecture)
    files = SafetensorsSource(folder, family.hf_rows_interleaved, family.norm_offset)
    weights: WeightSource = files
    left_out: Mapping[str, int] = {}
    if family.hf_renames or family.hf_ignored:
        weights = renamed = RenamedSource(weights, family.hf_renames, family.hf_ignored)
        left_out = renamed.left_out
    tokenizer = _naming(
        None, lambda: tokenizer_from_folder(folder, config.vocab_size, config.bos_token_id)
    )
    generation = read_generation_config(folder)
    found = _naming(None, lambda: template_sources(folder))
    template = template_source = None
    if found is not None:
        path, sources = found
        template_source = path.name
        template = _naming(path, lambda: ChatTemplate(sources, special_tokens_of(folder)))
    ends = [*config.eos_token_ids, *generation.end_ids, *(tokenizer.eos_ids if tokenizer else ())]
    return Checkpoint(
        config,
        weights,
        tokenizer,
        template,
        _in_vocabulary(ends, config),
        "safetensors",
        left_out,
        generation.sampling,
        files.stored_bytes(),
        template_source,
    )


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file, or all parts of a split one."""
    file = GGUFParts(path)
    family = _naming(path, lambda: family_of_gguf(file.metadata))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(path, "tensor 'token_embd.weight' is missing.", "Fetch it again.")
    config = _naming(
        path,
        lambda: config_from_gguf(
            file.metadata,
            embedding_rows=embedding.shape[0],
            has_output="output.weight" in file.tensors,
            rope_vectors=RopeVectors(
                divisors=read_vector(file, "rope_freqs.weight"),
                short=read_vector(file, "rope_factors_short.weight"),
                long=read_vector(file, "rope_factors_long.weight"),
            ),
            has_attention_bias=bool(
                {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & file.tensors.keys()
            ),
            has_o_bias="blk.0.attn_output.bias" in file.tensors,
        ),
    )
    tokenizer = _naming(path, lambda: tokenizer_from_gguf(file.metadata, config.vocab_size))
    sources = _naming(path, lambda: _gguf_templates(file))
    template = None
    if sources:
        special_tokens = tokenizer.special_tokens if tokenizer else {}
        template = _naming(path, lambda: ChatTemplate(sources, special_tokens))
    ends = [*config.eos_token_ids, *(tokenizer.eos_ids if tokenizer else ())]
    return Checkpoint(
        config,
        GGUFSource(file, family),
        tokenizer,
        template,
        _in_vocabulary(ends, config),
        "gguf",
        stored_bytes=sum_by((t.type_name, t.n_bytes) for t in file.tensors.values()),
        template_source="tokenizer.chat_template" if template else None,
    )


def _gguf_templates(file: GGUFParts) -> dict[str, str]:
    """tokenizer.chat_template, and those that have a name of their own behind it."""
    named: dict[str, str] = {}
    for key, value in file.metadata.items():
        if key == "tokenizer.chat_template":
            named.update(named_templates(value, key))
        elif key.startswith("tokenizer.chat_template.") and isinstance(value, str):
            named[key.removeprefix("tokenizer.chat_template.")] = value
    return named


def _in_vocabulary(ids: list[int], config: ModelConfig) -> tuple[int, ...]:
    return tuple(token_id for token_id in dict.fromkeys(ids) if token_id < config.vocab_size)


def _naming(path: Path | None, read: Callable[[], T]) -> T:
    """read(), its ValueError as a ModelLoadError. path: the file it reads, None when the message
    names it already."""
    try:
        return read()
    except ModelLoadError:
        raise
    except ValueError as error:
        raise ModelLoadError(path, str(error)) from error
