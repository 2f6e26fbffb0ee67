"""The engine's process of `astrai-serve`: loads the model, then serves it over a channel.

`engine_process` starts it. It knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from types import FrameType
from typing import Any

from astrai.cli.cuda_context import begin_cuda_context
from astrai.cli.serve import configure_logging, load_engine
from astrai.cli.start_times import StartTimes
from astrai.cli.summary import model_rows
from astrai.engine.child import Channel, receive_settings, serve_engine
from astrai.engine.child.messages import encode
from astrai.server.collector import quiet_collector
from astrai.server.settings import ServerSettings

log = logging.getLogger("astrai.serve")

_FLUSH_S = 10.0


def main(channel_fd: int) -> int:
    """Returns the exit status: 0 when told to stop, 1 when the start failed or the engine died."""
    # The server alone decides when it is over: supervisors may signal every process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _pass_over)
    times = StartTimes()
    connected = socket.socket(fileno=channel_fd)
    channel = Channel(connected)
    fields = receive_settings(channel)
    if fields is None:
        return 1
    settings = _settings(fields)
    configure_logging(settings)
    begin_cuda_context(settings.device)
    threading.Thread(target=_leave_with_the_server, args=(connected,), daemon=True).start()
    try:
        loaded, engine = load_engine(settings, times)
    except (OSError, ValueError, RuntimeError) as error:
        log.debug("start failed", exc_info=True)
        channel.send(encode("failed", str(error)))
        channel.flush(_FLUSH_S)
        return 1
    quiet_collector()
    max_open = settings.max_batch_size + settings.max_queue
    rows = [*model_rows(settings, loaded, engine), ("engine", times.text())]
    return serve_engine(engine, channel, max_open, rows)


def _pass_over(number: int, frame: FrameType | None) -> None:
    """A handler and not SIG_IGN, which processes started from here would inherit."""


def _settings(fields: dict[str, Any]) -> ServerSettings:
    tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return ServerSettings(**{**fields, **tuples})


def _leave_with_the_server(connected: socket.socket) -> None:
    """End the process at once where the server ends while the model is loaded. The first message
    says that loading is over."""
    if not connected.recv(1, socket.MSG_PEEK):
        os._exit(1)
