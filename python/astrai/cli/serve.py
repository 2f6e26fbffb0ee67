"""`astrai-serve`: settings from flags and YAML, a model into an engine, a server over it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrai import _C, env
from astrai.cli.config import read_config
from astrai.cli.cuda_context import begin_cuda_context
from astrai.cli.log_format import JsonFormatter
from astrai.cli.options import Option, OptionError, add_flags, nearest, server_options
from astrai.cli.start_times import StartTimes
from astrai.requirements import MissingRequirementError, require_torch
from astrai.server.collector import paused_collector
from astrai.server.settings import ServerSettings

if TYPE_CHECKING:
    from astrai.engine import InferenceEngine
    from astrai.models import LoadedModel
    from astrai.server.engine_link import ServedEngine

log = logging.getLogger("astrai.serve")

_EPILOG = """\
Flags may be written with dashes or underscores. --config reads the same settings from the
server: section of a YAML file; a flag given here wins over the file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0 after a drain, 1 when the start fails, 2 on usage."""
    times = StartTimes()
    try:
        settings = parse_settings(sys.argv[1:] if argv is None else argv)
        configure_logging(settings)
        env.attention_backend()  # a bad ASTR_BACKEND is known before a model is loaded
        require_torch()
    except (ValueError, MissingRequirementError) as error:
        print(f"astrai-serve: error: {error}", file=sys.stderr)
        return 2
    try:
        return _serve(settings, times)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        # What a user can mend: files, ports, memory, the network. The trace is for debugging.
        log.debug("start failed", exc_info=True)
        print(f"astrai-serve: error: {error}", file=sys.stderr)
        return 1


def parse_settings(argv: Sequence[str]) -> ServerSettings:
    """Defaults, then the YAML file, then flags. Raises OptionError; --help and --version exit."""
    options = server_options()
    parser = _parser(options)
    given, unknown = parser.parse_known_args([_dashed(arg) for arg in argv])
    if unknown:
        raise OptionError(_unknown_argument(unknown[0], options))
    values = vars(given)
    path = values.pop("config")
    from_file = read_config(path, options) if path is not None else {}
    from_flags = {
        option.field: _joined(values[option.field]) if option.many else values[option.field]
        for option in options
        if option.field in values
    }
    return ServerSettings(**{**from_environment(options), **from_file, **from_flags})


def _joined(groups: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The items of a flag that was given several times."""
    return tuple(item for group in groups for item in group)


def from_environment(options: list[Option]) -> dict[str, Any]:
    """Keys, which a process list would show as flags."""
    keys = env.api_keys()
    if not keys:
        return {}
    (option,) = (option for option in options if option.field == "api_keys")
    return {"api_keys": option.check(keys, "ASTRAI_API_KEY")}


def _parser(options: list[Option]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="astrai-serve",
        usage="%(prog)s [--model MODEL] [--config FILE] [flags]",
        description="Serve a language model over the OpenAI and Anthropic HTTP protocols.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"astrai {_C.__version__}")
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="YAML file of settings")
    add_flags(parser, options)
    return parser


def _dashed(argument: str) -> str:
    """A flag's name with dashes; its value, if it has one, as it is."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _unknown_argument(argument: str, options: list[Option]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; a model is named with --model"
    flags = ["--" + name.replace("_", "-") for option in options for name in option.names]
    name = argument.partition("=")[0]
    known = [*flags, "--config", "--help", "--version"]
    return f"unknown flag {name}; did you mean {nearest(name, known)}?"


def configure_logging(settings: ServerSettings) -> None:
    """Log to stderr as the settings say."""
    level = settings.log_level or env.log_level()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if settings.log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # uvicorn's own start and stop lines repeat the summary.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _serve(settings: ServerSettings, times: StartTimes) -> int:
    if settings.model != "none" and settings.engine_process != "on":
        begin_cuda_context(settings.device)
    with paused_collector():
        from astrai.server import runner  # the web framework and torch, once the flags are good

        runner.check_certificate(settings)
        listener = runner.bind(settings.host, settings.port)
        scheme = "https" if settings.ssl_certfile else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"{scheme}://{host}:{listener.getsockname()[1]}"
        from astrai.cli.summary import summary
        from astrai.server.app import create_app

        engine = rows = None
        if settings.model != "none":
            engine, rows = start_engine(settings, times)
        app = create_app(engine, settings)

    def tell() -> None:
        times.end("server")
        print(summary(url, settings, rows, times), flush=True)

    runner.run(app, engine, settings, listener, tell)
    return 0


def start_engine(
    settings: ServerSettings, times: StartTimes
) -> tuple[ServedEngine, list[tuple[str, str]] | None]:
    """The engine, here or in a process of its own, and what `model_rows` tells of it."""
    if settings.engine_process == "on":
        from astrai.cli.engine_process import start_engine_process

        times.end("imports")
        started = start_engine_process(settings)
        times.end("engine's process")
        return started
    from astrai.cli.summary import model_rows

    loaded, engine = load_engine(settings, times)
    return engine, model_rows(settings, loaded, engine)


def load_engine(
    settings: ServerSettings, times: StartTimes | None = None
) -> tuple[LoadedModel, InferenceEngine]:
    """The model that settings name, and an engine that runs it. times: gets the stages.
    Raises as `load_model` and `InferenceEngine` do."""
    from astrai.engine import InferenceEngine
    from astrai.models import load_model

    times = times or StartTimes()
    times.end("imports")
    log.info("loading %s", settings.model or "the default model")
    loaded = load_model(
        settings.model,
        device=settings.device,
        dtype=settings.dtype,
        max_seq_len=settings.max_seq_len,
    )
    times.end("weights", {"tokenizer": loaded.summary["load_s"] - loaded.summary["weights_s"]})
    engine = InferenceEngine(
        loaded.model,
        loaded.tokenizer,
        max_batch_size=settings.max_batch_size,
        max_seq_len=settings.max_seq_len,
        kv_mode=settings.kv_mode,
        page_size=settings.page_size,
        kv_tokens=settings.kv_tokens,
        prefill_chunk="auto" if settings.prefill_chunk is None else settings.prefill_chunk,
        itl_target_ms=settings.itl_target_ms,
        batch_invariant=settings.batch_invariant,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        enable_cuda_graph=settings.cuda_graph,
        max_queue=settings.max_queue,
        chat_template=loaded.chat_template,
        end_ids=loaded.end_ids,
        sampling_defaults=_sampling_defaults(settings, loaded),
    )
    times.end("KV pool" if loaded.device.type == "cpu" else "KV pool and graphs")
    return loaded, engine


def _sampling_defaults(settings: ServerSettings, loaded: LoadedModel) -> Mapping[str, float]:
    if settings.generation_config == "none":
        return {}
    from astrai.models.generation_config import check_sampling

    return check_sampling(loaded.sampling, loaded.source)


if __name__ == "__main__":
    sys.exit(main())
