"""The scheduler's unit of work: one generation, seen as token counts and a row of the pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

__all__ = ["Task", "TaskStatus", "decoding_tasks"]

T = TypeVar("T", bound="Task")


class TaskStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Task:
    """Compared by identity.

    token_ids: what is known at the next admission: the prompt, after a preemption with the tokens
    generated so far. n_prefill: how many of them are computed as a prompt; n_known: all of them, at
    the last admission. req_idx: row of the pool while running, else -1.
    max_tokens: tokens it may generate, None without a limit. waits_for_tokens: its next token
    cannot be drawn before the engine knows the last one.
    n_planned: tokens whose KV a planned step writes; n_written: those of completed steps (a prefix
    hit counts in both). n_drawn: tokens that planned steps draw, over all its stays; n_pending:
    those of steps that are not completed.
    n_cached: prompt tokens found in the prefix cache at the first admission.
    rope_offset: what is added to its positions to look up their rotation.
    """

    task_id: str
    token_ids: list[int]
    namespace: str = ""
    selection: Any = None
    max_tokens: int | None = None
    waits_for_tokens: bool = False
    status: TaskStatus = field(default=TaskStatus.WAITING, init=False)
    req_idx: int = field(default=-1, init=False)
    n_prefill: int = field(default=0, init=False)
    n_known: int = field(default=0, init=False)
    n_planned: int = field(default=0, init=False)
    n_written: int = field(default=0, init=False)
    n_drawn: int = field(default=0, init=False)
    n_pending: int = field(default=0, init=False)
    n_cached: int = field(default=0, init=False)
    rope_offset: int = field(default=0, init=False)
    n_preemptions: int = field(default=0, init=False)
    is_admitted: bool = field(default=False, init=False)  # has been running at least once
    keeps_pages: bool = field(default=True, init=False)  # more of them may enter the prefix tree

    @property
    def replays(self) -> bool:
        """Whether its next token to compute is a generated one that was known at its admission."""
        return self.n_prefill <= self.n_planned < self.n_known

    @property
    def awaits_a_token(self) -> bool:
        """Whether it would decode, were the token drawn last known."""
        return (
            self.n_planned >= self.n_known
            and (self.max_tokens is None or self.n_drawn < self.max_tokens)
            and self.waits_for_tokens
            and self.n_pending > 0
        )


def decoding_tasks(tasks: Iterable[T]) -> list[T]:
    """Those for which the next step can draw another token from the one drawn last. One walk:
    plans ask it of all running tasks."""
    return [
        task
        for task in tasks
        if task.n_planned >= task.n_known
        and (task.max_tokens is None or task.n_drawn < task.max_tokens)
        and not (task.waits_for_tokens and task.n_pending)
    ]
