"""The scheduler's unit of work: one generation, seen as token counts and a row of the pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Task", "TaskStatus"]


class TaskStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Task:
    """Compared by identity.

    token_ids: what the next admission prefills: the prompt, after a preemption with the tokens
    generated so far. req_idx: row of the pool while running, else -1.
    n_written: tokens whose KV a completed forward has written (a prefix hit counts).
    n_cached: prompt tokens found in the prefix cache at the first admission.
    """

    task_id: str
    token_ids: list[int]
    namespace: str = ""
    selection: Any = None
    status: TaskStatus = field(default=TaskStatus.WAITING, init=False)
    req_idx: int = field(default=-1, init=False)
    n_prefill: int = field(default=0, init=False)  # tokens to write before decoding starts
    n_written: int = field(default=0, init=False)
    n_cached: int = field(default=0, init=False)
    n_preemptions: int = field(default=0, init=False)
    is_admitted: bool = field(default=False, init=False)  # has been running at least once
    keeps_pages: bool = field(default=True, init=False)  # written pages may enter the prefix tree
