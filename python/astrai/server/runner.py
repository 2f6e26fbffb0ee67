"""Runs the application under uvicorn: listening, draining on SIGTERM, leaving on the second one."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

import uvicorn
from fastapi import FastAPI

from astrai.server.collector import quiet_collector
from astrai.server.connection import TransportProtocol
from astrai.server.engine_link import ServedEngine
from astrai.server.settings import ServerSettings

log = logging.getLogger("astrai.server")

_BACKLOG = 2048
_KEEP_ALIVE_S = 75  # longer than the idle time of common client pools, which else meet closed ones
_GRACE_S = 3  # after the drain: for answers of cancelled requests to be written
_SECOND_SIGNAL_S = 0.1  # a supervisor that signals both process and group means one signal


class ListenError(OSError):
    """The address cannot be listened on; the message says what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening: a busy port is known before a model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. "
            "Pass another --port or --host, or stop the process that listens there."
        ) from None
    return listener


def check_certificate(settings: ServerSettings) -> None:
    """Reads the TLS files, so that a bad one is known before a model is loaded.

    Raises ValueError naming the flag.
    """
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile is not None:
            raise ValueError("--ssl-keyfile is given without --ssl-certfile; HTTPS needs both")
        return
    for flag, name in (
        ("--ssl-certfile", settings.ssl_certfile),
        ("--ssl-keyfile", settings.ssl_keyfile),
    ):
        if name is not None and not os.access(name, os.R_OK):
            raise ValueError(f"{flag} {name}: no such file, or it cannot be read")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.ssl_certfile, settings.ssl_keyfile, password=_no_passphrase
        )
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(
            f"--ssl-certfile {settings.ssl_certfile}: not a PEM certificate and the private key "
            f"that belongs to it, without a passphrase ({reason})"
        ) from None


def _no_passphrase() -> str:
    # Without a callback OpenSSL would ask on the terminal.
    return ""


def run(
    app: FastAPI,
    engine: ServedEngine | None,
    settings: ServerSettings,
    listener: socket.socket,
    on_listening: Callable[[], None],
) -> None:
    """Serve on listener until a signal; returns when the drain is over and the engine is down.

    on_listening: called once, when connections are taken.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        http=TransportProtocol,
        lifespan="on",
        ws="none",
        backlog=_BACKLOG,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s) + _GRACE_S,
    )
    quiet_collector()
    server = _DrainingServer(config, app, engine, settings.drain_timeout_s, on_listening)
    try:
        server.run(sockets=[listener])
    finally:
        if engine is not None:
            engine.shutdown()


class _DrainingServer(uvicorn.Server):
    """Ends in order: no new requests, open ones get their time, what is left is cancelled."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        engine: ServedEngine | None,
        drain_timeout_s: float,
        on_listening: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app = app
        self._engine = engine
        self._drain_timeout_s = drain_timeout_s
        self._on_listening = on_listening
        self._signalled_at = -math.inf
        self._signals: SimpleQueue[int] = SimpleQueue()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        threading.Thread(target=self._watch_signals, name="astrai-signals", daemon=True).start()
        super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler. The signal is not raised again afterwards: a drained exit is status 0."""
        # It may have come amid the writing of a log line, where another one cannot be written and
        # no lock be waited for. To put into this queue is allowed anywhere.
        self._signals.put(sig)

    def _watch_signals(self) -> None:
        while True:
            sig = self._signals.get()
            try:
                self._obey(sig)
            except Exception:  # such as no room for a thread; the next signal leaves at once
                log.exception("%s could not be obeyed", signal.Signals(sig).name)

    def _obey(self, sig: int) -> None:
        name = signal.Signals(sig).name
        now = time.monotonic()
        is_echo = now - self._signalled_at < _SECOND_SIGNAL_S
        self._signalled_at = now
        if is_echo:
            return
        if self._app.state.draining:
            try:
                log.warning("%s again: leaving at once", name)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:  # a terminal that is gone keeps nobody
                os._exit(128 + sig)
        self._app.state.draining = True
        log.info("%s: draining for up to %g s", name, self._drain_timeout_s)
        threading.Thread(target=self._drain, name="astrai-drain", daemon=True).start()

    def _drain(self) -> None:
        # The port stays open until the end: who comes meanwhile is told by a 503, not by a reset.
        try:
            if self._engine is not None:
                self._end_requests(self._engine)
        finally:
            # What is left of the drain is for clients that still send or read, not begun anew.
            left_s = self._signalled_at + self._drain_timeout_s - time.monotonic()
            self.config.timeout_graceful_shutdown = max(0, math.ceil(left_s)) + _GRACE_S
            self.should_exit = True

    def _end_requests(self, engine: ServedEngine) -> None:
        if not engine.client.drain(self._drain_timeout_s):
            log.warning("open requests are cancelled after %g s", self._drain_timeout_s)
        # Ends what is open with an event, so that each client gets an answer or an error.
        engine.shutdown()
