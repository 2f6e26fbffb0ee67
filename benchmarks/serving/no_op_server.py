"""The server over a model that computes nothing, in a process of its own.

Everything but the forward and the draw is the real thing: scheduler, KV bookkeeping, text streams,
HTTP.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import uvicorn
import uvloop
from benchmarks.serving.no_op_engine import Conditions, no_op_child, no_op_engine

from astrai.server import ServerSettings, create_app, runner
from astrai.server.collector import quiet_collector
from astrai.server.connection import TransportProtocol
from astrai.server.engine_link import ServedEngine


def serve(pipe: Connection, conditions: Conditions) -> None:
    """Run until the pipe says so. Sends the port and the engine's process, then at the end the
    seconds of each layer."""
    torch.set_num_threads(1)
    engine: ServedEngine
    if conditions.in_child:
        engine, engine_pid = no_op_child(conditions)
    else:
        engine, engine_pid = no_op_engine(conditions), os.getpid()
    layers = Layers() if conditions.times_layers else None
    listener = runner.bind("127.0.0.1", 0)
    settings = ServerSettings(
        max_batch_size=conditions.max_batch_size, max_body_bytes=16 * 1024 * 1024
    )
    options = uvicorn.Config(
        create_app(engine, settings), log_level="error", access_log=False, http=TransportProtocol
    )
    server = uvicorn.Server(options)
    quiet_collector()
    uvloop.run(_serve_until_told(server, listener, engine_pid, pipe, layers))
    engine.shutdown()


async def _serve_until_told(
    server: uvicorn.Server, listener: Any, engine_pid: int, pipe: Connection, layers: Layers | None
) -> None:
    asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: _stop(server))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    pipe.send((listener.getsockname()[1], engine_pid))
    await serving
    pipe.recv()
    pipe.send(layers.seconds if layers is not None else {})


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


class Layers:
    """CPU seconds of the loop's thread in three layers: text to frames, frames through the
    application's layers, and the steps' frames to their sockets around those."""

    def __init__(self) -> None:
        from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

        from astrai.server.connection import StepWriter
        from astrai.server.streamed_answer import StreamedAnswer

        self.seconds = {"formatting": 0.0, "layers": 0.0, "sending": 0.0}
        self._time("formatting", StreamedAnswer, "_format")
        self._time("sending", StepWriter, "flush")
        send = RequestResponseCycle.send

        async def timed_send(cycle: Any, message: Any) -> None:
            begin = time.thread_time()
            await send(cycle, message)
            self.seconds["layers"] += time.thread_time() - begin

        RequestResponseCycle.send = timed_send  # type: ignore[method-assign,assignment]

    def _time(self, layer: str, owner: type, name: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any) -> Any:
            begin = time.thread_time()
            result = work(*args)
            self.seconds[layer] += time.thread_time() - begin
            return result

        setattr(owner, name, timed)
