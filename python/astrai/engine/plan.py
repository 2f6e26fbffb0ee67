"""What the scheduling state decides for one step: plain frozen data, no effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from astrai.engine.task import Task

__all__ = ["StepGroup", "StepPlan"]

T = TypeVar("T", bound=Task)


@dataclass(frozen=True, slots=True)
class StepGroup(Generic[T]):
    """The tasks of one forward: a ragged batch of decoding tasks and prefill chunks.

    The first n_decode tasks decode. The first n_sampled, those among them, draw a token from their
    last position; the others are chunks that do not reach the end of their prompt. In a replay all
    decode, from tokens that the pool knows, and the first n_sampled draw. All lists have one entry
    per task.
    """

    selection: Any  # attention backend selection, the same for all tasks of the group
    tasks: list[T]
    req_indices: list[int]  # rows of the pool
    starts: list[int]  # first position of this step's tokens
    q_lens: list[int]  # how many tokens this step computes
    n_sampled: int
    n_decode: int
    # What is added to a task's positions to look up their rotation; None: nothing for all.
    rope_offsets: list[int] | None = None
    is_replay: bool = False

    @property
    def only_decodes(self) -> bool:
        """Whether each task computes one token, from the one drawn last, and draws the next."""
        return self.n_decode == self.n_sampled == len(self.tasks) and not self.is_replay


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[T]):
    """One step. out_of_room: tasks that had to end here because the pool cannot grow for them.

    refused: tasks that the pool could never hold, with the reason. admitted: tasks that left the
    waiting queue for the first time.
    """

    groups: list[StepGroup[T]]
    out_of_room: list[T]
    refused: list[tuple[T, str]]
    admitted: list[T]
