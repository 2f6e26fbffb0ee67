"""What `astrai-serve` prints when it is ready: one screen, what runs where, within what limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from astrai import _C
from astrai.cli.start_times import StartTimes
from astrai.server.settings import ServerSettings

if TYPE_CHECKING:
    from astrai.engine import InferenceEngine
    from astrai.models import LoadedModel

_MB = 1e6


def summary(
    url: str, settings: ServerSettings, model: list[tuple[str, str]] | None, times: StartTimes
) -> str:
    """model: `model_rows`, None without one."""
    rows = [("server", url)]
    rows += [("model", "none: model routes answer 503")] if model is None else model
    keys = len(settings.api_keys)
    rows.append(("access", f"{keys} API keys" if keys else "no API key: whoever reaches the port"))
    rows.append(("page", "the server's address in a browser: chat and inspector"))
    rows.append(("routes", "POST /v1/chat/completions /v1/responses /v1/messages /v1/completions"))
    rows.append(("", "GET  /v1/models /health /ready /stats /metrics /openapi.json"))
    rows.append(("start", times.text()))
    lines = [f"AstrAI {_C.__version__}, ready in {times.total_s:.1f} s"]
    lines += [f"  {name:<9} {text}" for name, text in rows]
    return "\n".join(lines)


def model_rows(
    settings: ServerSettings, loaded: LoadedModel, engine: InferenceEngine
) -> list[tuple[str, str]]:
    """(name, text) of each line about what is served; an empty name goes on with the one above."""
    facts = loaded.summary
    rows = [
        (
            "model",
            f"{Path(loaded.source).stem} ({facts['architecture']}, {facts['format']} of "
            f"{_types(facts['stored_bytes'])}): {facts['n_parameters'] / 1e6:.1f} M "
            f"parameters in {loaded.config.n_layers} layers",
        ),
        *(
            ("", f"text alone: {n} tensors of {module} are not loaded")
            for module, n in facts["left_out"].items()
        ),
        (
            "device",
            f"{loaded.device}, {facts['weight_bytes'] / _MB:.0f} MB of weights in "
            f"{str(loaded.dtype).removeprefix('torch.')}, loaded in {facts['load_s']:.1f} s",
        ),
        ("context", _context(loaded)),
        ("text", _text(loaded)),
        (
            "batch",
            f"{settings.max_batch_size} requests of up to {engine.max_seq_len} tokens, "
            f"prompts in chunks of {engine.prefill_chunk}, queue {settings.max_queue}",
        ),
        ("KV cache", _kv_cache(engine)),
    ]
    if settings.itl_target_ms is not None:
        rows.append(
            (
                "tokens",
                f"{settings.itl_target_ms:g} ms apart or less, as far as chunks of prompts decide",
            )
        )
    if engine.batch_invariant:
        rows.append(("answers", "the same to the bit whatever runs beside them"))
    if settings.generation_config == "auto":
        rows.append(("sampling", _sampling(engine)))
    if engine.ledger is not None:
        rows.append(("memory", "; ".join(engine.ledger.lines())))
    return rows


def _types(stored_bytes: Mapping[str, int]) -> str:
    """The files' types, those of at least a hundredth of the bytes."""
    least = sum(stored_bytes.values()) / 100
    return ", ".join(name for name, n_bytes in stored_bytes.items() if n_bytes >= least)


def _context(loaded: LoadedModel) -> str:
    config = loaded.config
    window = f", windows of {config.sliding_window}" if config.sliding_window else ""
    rope_type = config.rope.rope_type
    scaling = "" if rope_type == "default" else f" (RoPE scaling {rope_type})"
    return f"{config.context_len} tokens{scaling}{window}"


def _text(loaded: LoadedModel) -> str:
    ends = f"texts end at ids {', '.join(map(str, loaded.end_ids))}"
    if not loaded.end_ids:
        ends = "no id ends a text"
    if loaded.tokenizer is None:
        return f"no tokenizer: token ids only; {ends}"
    if loaded.chat_template is None:
        return f"tokenizer, no chat template: /v1/completions only; {ends}"
    return f"tokenizer, chat template of {loaded.summary['template_source']}; {ends}"


def _sampling(engine: InferenceEngine) -> str:
    given = ", ".join(f"{name} {value:g}" for name, value in engine.sampling_defaults.items())
    if not given:
        return "generation_config.json gives no defaults"
    return f"{given} where a request gives none (generation_config.json)"


def _kv_cache(engine: InferenceEngine) -> str:
    pool = engine.cache.host
    storage = engine.cache.storage
    n_bytes = storage.k_buffer.nbytes + storage.v_buffer.nbytes
    if pool.contiguous:
        kind = "contiguous"
    else:
        reuse = "prefix reuse" if pool.page_size > 1 else "no prefix reuse"
        kind = f"paged, pages of {pool.page_size}, {reuse}"
    return f"{pool.n_tokens} tokens, {n_bytes / _MB:.0f} MB ({kind})"
