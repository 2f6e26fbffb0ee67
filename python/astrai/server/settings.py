"""The server's settings: one frozen dataclass, and with each field what the command line says.

`astrai.cli` builds the flags, `--help` and the checks of the YAML `server:` section from these
fields, so a setting is declared once. Nothing here imports FastAPI or torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MODEL, ENGINE, NETWORK, LOGS, LIMITS = "model", "engine", "network", "logs", "limits"


def _setting(
    default: Any,
    group: str,
    text: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    aliases: tuple[str, ...] = (),
    flag: str | None = None,
    splits: bool = False,
) -> Any:
    """A dataclass field with its help group, help text and bounds.

    flag names the command-line flag where it differs from the field's name. splits: a text may
    hold several items with commas between them.
    """
    metadata: Mapping[str, Any] = {
        "group": group,
        "help": text,
        "minimum": minimum,
        "maximum": maximum,
        "aliases": aliases,
        "flag": flag,
        "splits": splits,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything `astrai-serve` can be told. A None takes the value that the field's help names."""

    model: str | None = _setting(
        None,
        MODEL,
        "folder, .gguf file or hub id; left out: SmolLM2-135M-Instruct; 'none': no model",
        aliases=("param_path",),
    )
    served_model_name: str = _setting("astrai", MODEL, "name listed by /v1/models")
    device: str = _setting("auto", MODEL, "auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = _setting(
        "auto", MODEL, "type of weights and KV cache; auto: what the device multiplies fastest"
    )
    generation_config: Literal["none", "auto"] = _setting(
        "none",
        MODEL,
        "auto: temperature, top_p, top_k and repetition_penalty of the model's "
        "generation_config.json where a request gives none",
    )
    tool_parser: Literal[
        "auto", "none", "hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "json"
    ] = _setting("auto", MODEL, "form of the model's tool calls; auto: as its chat template says")
    reasoning_parser: Literal["auto", "none", "think", "mistral"] = _setting(
        "auto", MODEL, "tags around the model's reasoning; auto: as its chat template says"
    )

    max_batch_size: int = _setting(
        16, ENGINE, "requests that run at once", minimum=1, maximum=65536
    )
    max_seq_len: int | None = _setting(
        None,
        ENGINE,
        "tokens of a prompt and its answer; left out: the model's context",
        minimum=2,
        aliases=("max_model_len",),
    )
    kv_mode: Literal["paged", "contiguous"] = _setting(
        "paged",
        ENGINE,
        "paged: one shared pool with prefix reuse; contiguous: fixed rows for each request",
    )
    page_size: int = _setting(
        16, ENGINE, "token slots of a KV page; 1 turns prefix reuse off", minimum=1, maximum=65536
    )
    kv_tokens: int | None = _setting(
        None, ENGINE, "token slots of the paged pool; left out: sized to the free memory", minimum=1
    )
    prefill_chunk: int | None = _setting(
        None,
        ENGINE,
        "prompt tokens computed in one step; left out: 512 on a CPU, up to 4096 on a GPU",
        minimum=1,
    )
    itl_target_ms: float | None = _setting(
        None,
        ENGINE,
        "milliseconds between two tokens that chunks of prompts should keep; left out: no aim",
        minimum=0.1,
        maximum=100_000,
    )
    gpu_memory_utilization: float = _setting(
        0.9,
        ENGINE,
        "share of a GPU's memory that may be in use, the KV pool included",
        minimum=0.05,
        maximum=1,
    )
    cuda_graph: bool = _setting(
        True, ENGINE, "on a GPU, run each decode step as one captured graph"
    )
    batch_invariant: bool = _setting(
        False,
        ENGINE,
        "the same logits for a request, to the bit, whatever runs beside it or is cached; slower",
    )
    engine_process: Literal["auto", "on", "off"] = _setting(
        "auto",
        ENGINE,
        "run the engine in a process of its own; auto: where that is measured to be faster, "
        "which is nowhere",
    )
    max_queue: int = _setting(
        1024, ENGINE, "requests that may wait; the next one is answered 429", minimum=0
    )

    host: str = _setting("127.0.0.1", NETWORK, "address to listen on")
    port: int = _setting(
        8000, NETWORK, "port to listen on; 0: any free one", minimum=0, maximum=65535
    )
    api_keys: tuple[str, ...] = _setting(
        (),
        NETWORK,
        "a key that requests must carry; several with commas or by repeating the flag; "
        "left out: ASTRAI_API_KEY",
        flag="api_key",
        aliases=("api_key",),
        splits=True,
    )
    metrics_public: bool = _setting(False, NETWORK, "serve /metrics without a key")
    cors_origins: tuple[str, ...] = _setting(
        (),
        NETWORK,
        "origin whose pages may call the API; several as for --api-key; '*': any",
        flag="cors_origin",
        aliases=("cors_origin",),
        splits=True,
    )
    cors_credentials: bool = _setting(
        False, NETWORK, "let pages of those origins send cookies and the browser's credentials"
    )
    root_path: str | None = _setting(
        None, NETWORK, "path under which a proxy serves this server, such as /llm"
    )
    ssl_certfile: str | None = _setting(
        None, NETWORK, "PEM file of the certificate chain; serves HTTPS"
    )
    ssl_keyfile: str | None = _setting(
        None, NETWORK, "PEM file of the private key; left out: it is in --ssl-certfile"
    )
    drain_timeout_s: float = _setting(
        5.0,
        NETWORK,
        "seconds that open requests get to finish after SIGTERM",
        minimum=0,
        maximum=3600,
    )

    log_level: Literal["debug", "info", "warning", "error"] | None = _setting(
        None, LOGS, "least severe message logged; left out: ASTRAI_LOG_LEVEL, else info"
    )
    log_format: Literal["text", "json"] = _setting(
        "text", LOGS, "form of a log line; json: one object a line"
    )
    log_prompts: bool = _setting(
        False, LOGS, "put the bodies of requests, which hold the prompts, into the access log"
    )

    request_timeout_s: float | None = _setting(
        None,
        LIMITS,
        "seconds from a request's arrival to the end of its answer; left out: no limit",
        minimum=0.001,
        maximum=86400,
    )
    max_body_bytes: int = _setting(
        4 * 1024 * 1024, LIMITS, "bytes of a request body; more is answered 413", minimum=1024
    )
    max_prompt_tokens: int | None = _setting(
        None, LIMITS, "tokens of a prompt; left out: what the context holds", minimum=1
    )
    max_n: int = _setting(16, LIMITS, "choices of one request (n)", minimum=1, maximum=1024)
    max_prompts: int = _setting(
        512, LIMITS, "prompts times n of one /v1/completions request", minimum=1
    )
    max_logprobs: int = _setting(
        20, LIMITS, "alternatives of a token (top_logprobs)", minimum=0, maximum=20
    )
    max_stop_strings: int = _setting(16, LIMITS, "stop strings of one request", minimum=0)
    max_stop_chars: int = _setting(1024, LIMITS, "characters of one stop string", minimum=1)
    max_stored_responses: int = _setting(
        1000, LIMITS, "responses of /v1/responses kept for later ones, in memory", minimum=0
    )
    max_tools_bytes: int = _setting(
        256 * 1024, LIMITS, "bytes of the tool definitions of one request", minimum=1024
    )
