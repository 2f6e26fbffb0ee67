"""The start of an engine in a process of its own, as `astrai-serve --engine-process on` has it."""

from __future__ import annotations

import dataclasses

from astrai.engine.child import ChildEngine, EngineProcess
from astrai.models.loader import open_checkpoint
from astrai.models.source import locate_model
from astrai.server.settings import ServerSettings

__all__ = ["start_engine_process"]

_MODULE = "astrai.cli.engine_child"


def start_engine_process(
    settings: ServerSettings,
) -> tuple[ChildEngine, list[tuple[str, str]]]:
    """An engine that is ready, and what it says of itself (see `model_rows`).

    Raises as `load_model` and `InferenceEngine` do, or RuntimeError with what they said there."""
    process = EngineProcess(_MODULE)
    try:
        # Located here, so that one process alone fetches it; the other one imports torch meanwhile.
        path = locate_model(settings.model, progress=True)
        sent = dataclasses.replace(settings, model=str(path), api_keys=())
        process.configure(dataclasses.asdict(sent))
        _, checkpoint = open_checkpoint(path)
        facts = process.wait_until_ready()
    except BaseException:
        process.kill()
        raise
    return ChildEngine(process, facts, checkpoint), facts.description
