"""The fixtures of `forwarded_front`."""

from __future__ import annotations

from forwarded_front import front, start_front

__all__ = ["front", "start_front"]
