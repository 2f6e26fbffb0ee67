"""Noticing that a client has gone, before and during its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection; nobody reads the answer."""


class DisconnectWatch:
    """Reads the connection after the body until it closes.

    Make it once the body has been read, on the request's task; `close()` it when the answer is
    done. Nothing else may read from `receive` meanwhile.
    """

    def __init__(self, receive: Receive) -> None:
        self._task = asyncio.create_task(_until_gone(receive))

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work; cancels it and raises ClientGone when the client goes first."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientGone
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def close(self) -> None:
        self._task.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
