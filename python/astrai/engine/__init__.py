"""The engine: continuous batching of generation requests on one model.

`InferenceEngine` is the Python API, `EngineClient` the seam that servers use. The scheduling
decisions are in `scheduling_state`, free of threads and tensors.
"""

from __future__ import annotations

from astrai.engine.client import EngineClient, InProcessClient
from astrai.engine.engine import InferenceEngine
from astrai.engine.errors import (
    DeadlineError,
    EngineDeadError,
    EngineError,
    EngineStoppingError,
    GenerationError,
    QueueFullError,
    RequestError,
)
from astrai.engine.histogram import HistogramSnapshot
from astrai.engine.inspection import Inspection
from astrai.engine.memory_ledger import MemoryLedger, NotEnoughMemoryError
from astrai.engine.request import GenerationRequest, TokenEvent
from astrai.engine.result import STOP, GenerateResult
from astrai.engine.router import AsyncEventRouter, TakeEvent
from astrai.engine.scheduler import InferenceScheduler
from astrai.engine.scheduling_state import SchedulingState

__all__ = [
    "STOP",
    "AsyncEventRouter",
    "DeadlineError",
    "EngineClient",
    "EngineDeadError",
    "EngineError",
    "EngineStoppingError",
    "GenerateResult",
    "GenerationError",
    "GenerationRequest",
    "HistogramSnapshot",
    "InProcessClient",
    "InferenceEngine",
    "InferenceScheduler",
    "Inspection",
    "MemoryLedger",
    "NotEnoughMemoryError",
    "QueueFullError",
    "RequestError",
    "SchedulingState",
    "TakeEvent",
    "TokenEvent",
]
