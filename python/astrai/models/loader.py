"""`load_model`: from a folder, a GGUF file, a hub id or nothing at all to a model that runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from astrai import _C
from astrai.models.build import build_model
from astrai.models.checkpoint import Checkpoint, open_folder, open_gguf
from astrai.models.config import ModelConfig
from astrai.models.decoder import CausalLM
from astrai.models.device import resolve_device, resolve_dtype
from astrai.models.errors import ModelLoadError
from astrai.models.source import locate_model
from astrai.text import ChatTemplate, Tokenizer

__all__ = ["LoadedModel", "load_model", "open_checkpoint"]

_log = logging.getLogger(__name__)

# Of a context that a file asks for and nobody else: 2 million tokens of heads of 128 dimensions.
_MAX_ROTARY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory with everything that belongs to it."""

    model: CausalLM
    config: ModelConfig
    tokenizer: Tokenizer | None  # None: token ids only
    chat_template: ChatTemplate | None
    end_ids: tuple[int, ...]
    sampling: Mapping[str, float]  # defaults of generation_config.json, see `check_sampling`
    source: str  # the folder or file it came from
    summary: Mapping[str, Any]  # format, n_parameters, weight_bytes, left_out, ...
    device: torch.device
    dtype: torch.dtype


def load_model(
    source: str | Path | None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    progress: bool | Literal["always"] = True,
    max_seq_len: int | None = None,
) -> LoadedModel:
    """Load a model.

    source: a Hugging Face folder, a GGUF file (either may begin with ~ or file://), a hub id
    (OWNER/NAME or OWNER/NAME@REVISION), or None for the default model, which is fetched on first
    use. progress: a bar on stderr while it is a terminal; "always" shows it anywhere. max_seq_len:
    tokens to serve, at least 2; default and most the model's context, RoPE scaling included.
    Raises ModelLoadError for files, ValueError for the other arguments."""
    began = time.perf_counter()
    resolved_device = resolve_device(device)
    resolved_dtype = resolve_dtype(dtype, resolved_device)
    path, checkpoint = open_checkpoint(source, bool(progress))
    config = checkpoint.config
    # Before anything of that length is made: a rotary table may be larger than the machine.
    max_len = _default_len(config, path) if max_seq_len is None else max_seq_len
    if not 2 <= max_len <= config.context_len:
        raise ValueError(f"max_seq_len is {max_len}; {_context_limit(config)}")
    if resolved_device.type == "cpu":
        # One setting for both, so that OMP_NUM_THREADS and torch.set_num_threads reach _C as well.
        _C.cpu_threads(torch.get_num_threads())
    build_began = time.perf_counter()
    model = _build(checkpoint, path, resolved_device, resolved_dtype, max_len, progress)
    build_s, n_read = time.perf_counter() - build_began, sum(checkpoint.stored_bytes.values())
    _log.info(
        "%d MB of weights in %.2f s, %.2f GB/s", n_read / 1e6, build_s, n_read / build_s / 1e9
    )
    weights = model.parameters()
    summary = {
        "architecture": config.architecture,
        "format": checkpoint.format,
        "n_parameters": sum(weight.numel() for weight in weights),
        "weight_bytes": sum(weight.nbytes for weight in weights),
        "left_out": dict(checkpoint.left_out),
        "stored_bytes": dict(checkpoint.stored_bytes),
        "template_source": checkpoint.template_source,
        "weights_s": round(build_s, 3),
        "load_s": round(time.perf_counter() - began, 3),
    }
    return LoadedModel(
        model=model,
        config=config,
        tokenizer=checkpoint.tokenizer,
        chat_template=checkpoint.chat_template,
        end_ids=checkpoint.end_ids,
        sampling=checkpoint.sampling,
        source=str(path),
        summary=summary,
        device=resolved_device,
        dtype=resolved_dtype,
    )


def open_checkpoint(source: str | Path | None, progress: bool = True) -> tuple[Path, Checkpoint]:
    """Where a model lies, and all of it but its weights, which stay on disk.

    Arguments and errors are those of `load_model`."""
    path = locate_model(source, progress)
    return path, open_gguf(path) if path.is_file() else open_folder(path)


def _default_len(config: ModelConfig, path: Path) -> int:
    """The model's context, unless a number in a file would take the machine's memory."""
    table_bytes = 4 * config.rotary_dim * config.context_len
    if table_bytes > _MAX_ROTARY_BYTES:
        raise ModelLoadError(
            path,
            f"has a context of {config.context_len} tokens, whose rotary table alone would take "
            f"{table_bytes / (1 << 30):.1f} GiB.",
            "Pass the tokens to serve as --max-seq-len (max_seq_len in Python).",
        )
    return config.context_len


def _context_limit(config: ModelConfig) -> str:
    scaled, rope = "", config.rope
    if config.context_len != config.max_position_embeddings:
        scaled = (
            f" (max_position_embeddings {config.max_position_embeddings}, RoPE scaling "
            f"{rope.rope_type} by {rope.factor:g})"
        )
    return (
        f"this model takes 2 to {config.context_len}{scaled}. A longer context needs RoPE scaling "
        f"in the model's configuration (rope_scaling in config.json), as its authors advise."
    )


def _build(
    checkpoint: Checkpoint,
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    max_len: int,
    progress: bool | Literal["always"],
) -> CausalLM:
    from tqdm import tqdm

    weights = checkpoint.weights
    # disable=None lets tqdm draw on a terminal only.
    disable = {"always": False, True: None, False: True}[progress]
    with tqdm(
        total=sum(weights.n_bytes(name) for name in weights.names()),
        desc=f"loading {path.name}",
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=disable,
    ) as bar:
        return build_model(
            checkpoint.config,
            weights,
            device=device,
            dtype=dtype,
            max_len=max_len,
            on_bytes=bar.update,
        )
