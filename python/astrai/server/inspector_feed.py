"""Looks at the engine for the inspector, shared by all who ask. Used on the event loop only."""

from __future__ import annotations

import asyncio
import time

from astrai.engine import EngineClient, Inspection
from astrai.server.errors import ApiError

_MIN_INTERVAL_S = 0.25  # however many pages are open, the scheduler looks this often at most
_TIMEOUT_S = 15.0


class InspectorFeed:
    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._look: asyncio.Future[Inspection] | None = None
        self._asked_at = 0.0

    async def latest(self) -> Inspection:
        """A look that is being taken or was taken a moment ago, else a new one.

        Raises a 503 when the engine's current step outlasts the wait; what the engine raises.
        """
        now = time.monotonic()
        is_fresh = now - self._asked_at < _MIN_INTERVAL_S
        if self._look is None or (self._look.done() and not is_fresh):
            self._asked_at = now
            self._look = asyncio.wrap_future(self._client.inspect())
        try:
            return await asyncio.wait_for(asyncio.shield(self._look), _TIMEOUT_S)
        except asyncio.TimeoutError:
            raise ApiError(
                503, f"the engine's current step takes longer than {_TIMEOUT_S:g} s; ask again"
            ) from None
