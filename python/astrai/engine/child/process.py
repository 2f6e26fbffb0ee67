"""`EngineProcess`: the process that holds an engine, from its start to its end."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

from astrai.engine.child.channel import Channel
from astrai.engine.child.messages import EngineFacts, decode, encode, read_facts

__all__ = ["EngineProcess"]

_log = logging.getLogger(__name__)

_STOP_S = 40.0  # the engine itself gives its current step 30 s
_LAST_WORDS_S = 10.0  # from the end of its messages to the end of a process


class EngineProcess:
    """A fresh interpreter with a channel to it. It ends with this process, however that ends."""

    def __init__(self, module: str) -> None:
        """module: has a `main(file descriptor of the channel)` that returns the exit status."""
        ours, theirs = socket.socketpair()
        # The same packages as here, and none from the folder that the server was started in.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from {module} import main; sys.exit(main({theirs.fileno()}))"
        )
        with theirs:
            # A session of its own: a terminal's Ctrl-C is for the server, which lets it finish.
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.channel = Channel(ours)
        self._is_stopping = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def configure(self, settings: dict[str, Any]) -> None:
        """Send what `main` is to load."""
        self.channel.send(encode("start", settings))

    def wait_until_ready(self) -> EngineFacts:
        """Raises RuntimeError with what the process says is wrong, or with how it ended."""
        while True:
            contents = self.channel.receive(wait=True)
            if contents is None:
                self._process.wait(_LAST_WORDS_S)
                raise RuntimeError(
                    f"the engine's process {self._how_it_ended()} while it loaded the model; "
                    "its messages, if it had any, are above"
                )
            for content in contents:
                kind, said = decode(content)
                if kind == "failed":
                    raise RuntimeError(said)
                threading.Thread(target=self._watch, name="astrai-engine-end", daemon=True).start()
                return read_facts(said)

    def wait_until_stopped(self) -> None:
        """Wait for the end of a process that was told to stop, and not for ever. Idempotent."""
        self._is_stopping = True
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            _log.warning("the engine's process does not end by itself and is killed")
            self.kill()

    def kill(self) -> None:
        self._is_stopping = True
        self._process.kill()
        self._process.wait()
        self.channel.close()

    def _watch(self) -> None:
        self._process.wait()
        if not self._is_stopping:
            _log.error("the engine's process %s; restart the server", self._how_it_ended())

    def _how_it_ended(self) -> str:
        status = self._process.returncode
        if status >= 0:
            return f"ended with status {status}"
        name = signal.Signals(-status).name
        hint = ", as by a system that is out of memory" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
