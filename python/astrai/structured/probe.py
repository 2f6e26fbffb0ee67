"""A process in which a grammar is tried before it is compiled in the server's own.

Compilation can need minutes, gigabytes or more stack than there is, all from a short text, and code
that does cannot be stopped inside a process. Here it ends with the process: by a timer on CPU
time, which load on the machine does not shorten, or by its own fault.

    parent -> child   a frame: pickled (tokens, special ids, CPU seconds); then one for each source
    child -> parent   one byte when it is ready, and one after each source

A frame is 4 bytes of length and its content. What is wrong with a source is not told: the server's
own process compiles it again when it has proved harmless. `Probe` is single-threaded.
"""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

__all__ = ["Probe", "ProbeFault"]

_START_S = 60.0  # importing llguidance and building the vocabulary, on a busy machine
_MEMORY_BYTES = 4 << 30
_NICENESS = 3
_N_TRIED_TOKENS = 64


class ProbeFault(RuntimeError):
    """The process ended, or was ended, by the grammar it tried."""


class Probe:
    """One child process, started anew after each fault."""

    def __init__(self, tokens: Sequence[bytes], special_ids: Sequence[int], cpu_s: float) -> None:
        """tokens: bytes of every id, the last one being the end. cpu_s: for one grammar."""
        self._greeting = pickle.dumps((tokens, special_ids, cpu_s))
        self._wall_s = 4 * cpu_s  # for a machine whose cores are busy
        self._process = self._start()
        self._is_ready = False

    def try_out(self, source: str) -> None:
        """Compile a source for `llguidance.LLMatcher` and begin an answer. Raises ProbeFault when
        that takes too much of anything."""
        try:
            if not self._is_ready:
                self._wait(_START_S)
                self._is_ready = True
            _write_frame(self._process.stdin, source.encode())
            self._wait(self._wall_s)
        except (ProbeFault, BrokenPipeError):
            self.close()
            self._process, self._is_ready = self._start(), False
            raise ProbeFault from None

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "astrai.structured.probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            start_new_session=True,  # a Ctrl-C in the terminal is for the server
        )
        _write_frame(process.stdin, self._greeting)
        return process

    def _wait(self, timeout_s: float) -> None:
        """Until the child says that it is ready."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        is_heard = select.select([descriptor], [], [], timeout_s)[0]
        if not is_heard or not os.read(descriptor, 1):
            raise ProbeFault


def _write_frame(pipe: IO[bytes] | None, content: bytes) -> None:
    assert pipe is not None
    pipe.write(struct.pack("!I", len(content)) + content)
    pipe.flush()


# The child


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    import resource

    import llguidance

    tokens, special_ids, cpu_s = pickle.loads(_read_frame(requests))
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the timer ends the process
    vocabulary = llguidance.LLTokenizer(
        _Tokens(tokens, special_ids),  # type: ignore[arg-type]  # read by attribute
        n_vocab=len(tokens),
        eos_token=len(tokens) - 1,
    )
    _say_ready(answers)
    while source := _read_frame(requests):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        _try_out(llguidance, vocabulary, source.decode(), time.process_time() + cpu_s / 2)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say_ready(answers)


def _say_ready(answers: IO[bytes]) -> None:
    answers.write(b"+")
    answers.flush()


class _Tokens:
    """A tokenizer for `llguidance.LLTokenizer` that spells texts byte by byte."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_ids: Sequence[int]) -> None:
        self.tokens, self.special_token_ids = tokens, special_ids
        self.eos_token_id = len(tokens) - 1
        self._bytes = {token: i for i, token in enumerate(tokens) if len(token) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        spelled = [self._bytes.get(raw[i : i + 1]) for i in range(min(64, len(raw)))]
        return [token_id for token_id in spelled if token_id is not None]


def _try_out(llguidance: Any, vocabulary: Any, source: str, until: float) -> None:
    """until: `time.process_time` after which no more tokens are tried."""
    draw = random.Random(0)
    limits = llguidance.LLParserLimits(verbose_errors=False)
    matcher = llguidance.LLMatcher(vocabulary, source, log_level=0, limits=limits)
    for _ in range(_N_TRIED_TOKENS):
        if matcher.is_stopped() or matcher.is_error() or time.process_time() > until:
            break
        mask = matcher.compute_bitmask()
        places = [i for i, byte in enumerate(mask) if byte]
        if not places:
            break
        place = draw.choice(places)
        matcher.consume_token(8 * place + (mask[place] & -mask[place]).bit_length() - 1)
    if matcher.get_error().startswith("lexer error"):
        sys.exit(1)  # an expression grew beyond llguidance's own limits within a few tokens


def _read_frame(pipe: IO[bytes]) -> bytes:
    """The next frame, b"" at the end of the pipe."""
    head = pipe.read(4)
    return pipe.read(struct.unpack("!I", head)[0]) if len(head) == 4 else b""


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
