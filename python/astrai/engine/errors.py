"""Errors that the engine raises to its callers.

`RequestError` is the caller's mistake and becomes a 4xx answer; the others describe the state of
the engine.
"""

from __future__ import annotations

__all__ = [
    "DeadlineError",
    "DeviceLostError",
    "EngineDeadError",
    "EngineError",
    "EngineStoppingError",
    "GenerationError",
    "QueueFullError",
    "RequestError",
    "queue_full",
]


class RequestError(ValueError):
    """A request that can never be served.

    code: "context_length_exceeded", "invalid_grammar" or "invalid_value". param: the field at
    fault, or None.
    """

    def __init__(self, message: str, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class EngineError(RuntimeError):
    """Base of the errors that are not the caller's mistake."""


class QueueFullError(EngineError):
    """The waiting queue is at its limit; retry_after_s is a guess from recent request durations."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def queue_full(n_open: int, mean_duration_s: float) -> QueueFullError:
    """n_open: requests that are open, as many as may be. mean_duration_s: of recent ones."""
    retry_after_s = max(1.0, mean_duration_s)
    return QueueFullError(
        f"{n_open} requests are open, the limit of this engine; try again in {retry_after_s:.0f} s",
        retry_after_s,
    )


class DeadlineError(EngineError):
    """The request did not end within the time its caller gave it; it was cancelled."""


class DeviceLostError(EngineError):
    """A kernel has failed, so that nothing computes on the GPU for this process any more. It ends
    the scheduler's thread; callers see EngineDeadError."""


class EngineDeadError(EngineError):
    """The scheduler thread met a fault it could not contain; nothing is served any more."""


class EngineStoppingError(EngineError):
    """The engine is draining or shut down and takes no new request."""


class GenerationError(EngineError):
    """One request ended with finish_reason "error"; the engine goes on."""
