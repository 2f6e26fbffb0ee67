"""`Inbox`: what other threads leave for the scheduler's thread, and the tasks that are open.

The scheduler's thread reads it between two steps and sleeps on it while there is nothing to do.
Everything here is guarded by one condition.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from astrai.engine.engine_task import EngineTask
from astrai.engine.errors import EngineDeadError, EngineStoppingError, queue_full
from astrai.engine.inspection import Inspection
from astrai.engine.stats import EngineStats

__all__ = ["DEAD", "Inbox", "Notes"]

# Clients see this text: what the fault was stands in the log, not in an answer.
DEAD = "the engine has stopped after a fault"


@dataclass(frozen=True, slots=True)
class Notes:
    """What was left since the last look. cancelled: open tasks, a task twice if asked twice.
    has_slept: the thread had nothing to do until it came."""

    submitted: list[EngineTask]
    cancelled: list[EngineTask]
    inspections: list[Future[Inspection]]
    has_slept: bool


class Inbox:
    """Open tasks are those that were submitted and have not been closed."""

    def __init__(self, max_open: int, stats: EngineStats) -> None:
        """max_open: tasks that may be open together. stats: counts those submitted."""
        self._max_open = max_open
        self._stats = stats
        self._changed = threading.Condition()
        self._submitted: list[EngineTask] = []
        self._cancelled: list[str] = []
        self._inspections: list[Future[Inspection]] = []  # asked for, not taken yet
        self._open: dict[str, EngineTask] = {}
        self._is_draining = False
        self._is_stopping = False
        self._fault: BaseException | None = None

    # Any thread

    @property
    def is_usable(self) -> bool:
        """False after a fault, and once a stop has been asked for."""
        with self._changed:
            return self._fault is None and not self._is_stopping

    @property
    def n_open(self) -> int:
        with self._changed:
            return len(self._open)

    def submit(self, task: EngineTask) -> None:
        """Hand a task over. Raises EngineDeadError, EngineStoppingError or QueueFullError."""
        with self._changed:
            self._check_alive()
            if self._is_draining:
                raise EngineStoppingError("the engine is shutting down")
            if len(self._open) >= self._max_open:
                raise queue_full(len(self._open), self._stats.mean_duration_s())
            task.submitted_at = time.perf_counter()
            self._open[task.task_id] = task
            self._submitted.append(task)
            self._stats.n_submitted += 1
            self._changed.notify_all()

    def cancel(self, task_id: str) -> None:
        """Unknown and closed ids are ignored."""
        with self._changed:
            if task_id in self._open:
                self._cancelled.append(task_id)
                self._changed.notify_all()

    def inspect(self) -> Future[Inspection]:
        """Ask for a look. Raises EngineDeadError or EngineStoppingError."""
        future: Future[Inspection] = Future()
        with self._changed:
            self._check_alive()
            self._inspections.append(future)
            self._changed.notify_all()
        return future

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take no new task and wait for the open ones. True when all are closed."""
        with self._changed:
            self._is_draining = True
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    def stop(self) -> None:
        """Have the next `take` say that the thread is to end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def _check_alive(self) -> None:
        if self._fault is not None:
            raise EngineDeadError(DEAD) from self._fault
        if self._is_stopping:
            raise EngineStoppingError("the engine is shutting down")

    # The scheduler's thread

    def take(self, is_idle: bool) -> Notes | None:
        """The notes since the last call; waits for one where the thread is idle. None to stop."""
        has_slept = False
        with self._changed:
            while is_idle and not (
                self._submitted or self._cancelled or self._inspections or self._is_stopping
            ):
                has_slept = True
                self._changed.wait()
            if self._is_stopping:
                return None
            submitted, self._submitted = self._submitted, []
            cancelled, self._cancelled = self._cancelled, []
            inspections, self._inspections = self._inspections, []
            leaving = [self._open[task_id] for task_id in cancelled if task_id in self._open]
        return Notes(submitted, leaving, inspections, has_slept)

    def close(self, task: EngineTask) -> None:
        """A task is over."""
        with self._changed:
            del self._open[task.task_id]
            if not self._open:
                self._changed.notify_all()

    def fail(self, fault: BaseException) -> None:
        """Refuse everything from now on."""
        with self._changed:
            self._fault = fault

    def close_all(self) -> tuple[list[EngineTask], list[Future[Inspection]]]:
        """The thread ends: the tasks that were open, and the looks that nobody will take."""
        with self._changed:
            tasks = list(self._open.values())
            self._open.clear()
            self._submitted.clear()
            inspections, self._inspections = self._inspections, []
            self._changed.notify_all()
        return tasks, inspections
