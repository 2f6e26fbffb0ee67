"""One HTTP request on its way from the process that took it to the one that answers it.

Both ends speak ASGI; between them go a picklable request and batches of ASGI messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Scope

__all__ = ["ForwardedRequest", "Route", "answer"]


@dataclass(frozen=True, slots=True)
class Route:
    """What the choice of an engine is made of.

    page_keys: of the request's prompt, see `prefix_affinity`. replica: the only engine that can
    answer, if there is one. is_strict: no other engine's answer will do.
    """

    page_keys: list[int] = field(default_factory=list)
    replica: str | None = None
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """An HTTP request with its whole body. head: the parts of its ASGI scope."""

    head: Scope
    body: bytes
    route: Route


async def answer(app: ASGIApp, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
    """The app's answer: each batch holds all messages that were ready. Closing the generator is to
    the app what a client is that closes its connection; the app has ended when that returns.

    Raises what the app raises."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    is_gone = asyncio.Event()
    parts: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.put_nowait(message)

    async def run() -> None:
        try:
            await app({**request.head}, receive, send)
        finally:
            messages.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        is_open = True
        while is_open:
            batch = [await messages.get()]
            while not messages.empty():
                batch.append(messages.get_nowait())
            is_open = batch[-1] is not None
            if ready := [message for message in batch if message is not None]:
                yield ready
        await task
    finally:
        is_gone.set()
        await asyncio.gather(task, return_exceptions=True)
