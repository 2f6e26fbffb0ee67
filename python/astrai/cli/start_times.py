"""Where the time of a start goes, stage by stage, for whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Mapping

__all__ = ["StartTimes"]


class StartTimes:
    """Seconds of stages that come one after another, from the making of this object on."""

    def __init__(self) -> None:
        self._began_s = self._ended_s = time.monotonic()
        self.stages: dict[str, float] = {}  # in the order they came

    def end(self, stage: str, parts: Mapping[str, float] | None = None) -> None:
        """A stage is over. parts: seconds of it that are stages of their own and came first."""
        now = time.monotonic()
        parts = parts or {}
        self.stages |= parts
        self.stages[stage] = now - self._ended_s - sum(parts.values())
        self._ended_s = now

    @property
    def total_s(self) -> float:
        """From the beginning to the end of the last stage."""
        return self._ended_s - self._began_s

    def text(self) -> str:
        """One line: the seconds of each stage that took any worth telling."""
        told = ((stage, f"{seconds:.1f}") for stage, seconds in self.stages.items())
        return ", ".join(f"{stage} {seconds} s" for stage, seconds in told if seconds != "0.0")
