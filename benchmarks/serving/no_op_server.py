"""The server over a model that computes nothing, in a process of its own.

Everything but the forward and the draw is the real thing: scheduler, KV bookkeeping, text streams,
HTTP. Each step gives every request one token of plain text, at once or at a fixed pace.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch
import uvicorn
import uvloop

from astrai.engine import InferenceEngine
from astrai.engine.executor import DoneStep
from astrai.models.checkpoint import open_gguf
from astrai.models.default_model import fetch_default_model
from astrai.sampling import SampledRows
from astrai.server import ServerSettings, create_app, runner
from astrai.server.connection import TransportProtocol

CONTEXT = 300_000  # holds a prompt of 1 MB


@dataclass(frozen=True)
class Conditions:
    """pace_s: time from step to step, 0 for none. times_layers: count what the layers of
    `Layers` take, which costs something itself. max_batch_size: rows of the pool."""

    pace_s: float = 0.0
    times_layers: bool = False
    max_batch_size: int = 128
    max_seq_len: int = 4096


class NoOpExecutor:
    """Gives every sampled task the next of some words, after the pause of the pace."""

    def __init__(self, word_ids: list[int], pace_s: float, first_token_ns: Any) -> None:
        self._words = itertools.cycle(word_ids)
        self._pace_s = pace_s
        self._next_at = 0.0
        self._first_token_ns = first_token_ns

    runs_ahead = False

    def launch(self, group: Any, slots: list[int]) -> DoneStep:
        if self._pace_s:
            now = time.monotonic()
            self._next_at = max(self._next_at + self._pace_s, now)
            time.sleep(self._next_at - now)
        word = next(self._words)
        if any(task.n_output == 0 for task in group.tasks[: group.n_sampled]):
            self._first_token_ns.value = time.monotonic_ns()
        return DoneStep(SampledRows([word] * group.n_sampled, frozenset(), None))


def serve(pipe: Connection, first_token_ns: Any, conditions: Conditions) -> None:
    """Run until the pipe says so. Sends the port, then at the end the seconds of each layer."""
    torch.set_num_threads(1)
    checkpoint = open_gguf(fetch_default_model(progress=False))
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    config = SimpleNamespace(
        vocab_size=checkpoint.config.vocab_size,
        n_layers=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=1,
        max_position_embeddings=CONTEXT,
    )
    model = SimpleNamespace(
        config=config,
        max_len=CONTEXT,
        rope_switch_len=None,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    model.parameters = list
    n_rows, max_seq_len = conditions.max_batch_size, conditions.max_seq_len
    engine = InferenceEngine(
        model,  # type: ignore[arg-type]  # what an engine asks of a model that never runs
        tokenizer,
        max_batch_size=n_rows,
        max_seq_len=max_seq_len,
        kv_mode="paged",
        kv_tokens=n_rows * 4096 + max_seq_len,
        prefill_chunk=8192,
        chat_template=checkpoint.chat_template,
    )
    words = [tokenizer.encode(word)[0] for word in (" river", " stone", " light", " tree")]
    executor = NoOpExecutor(words, conditions.pace_s, first_token_ns)
    engine._scheduler._executor = executor  # the forward is what a no-op model leaves out
    layers = Layers() if conditions.times_layers else None
    listener = runner.bind("127.0.0.1", 0)
    settings = ServerSettings(max_batch_size=n_rows, max_body_bytes=16 * 1024 * 1024)
    options = uvicorn.Config(
        create_app(engine, settings), log_level="error", access_log=False, http=TransportProtocol
    )
    server = uvicorn.Server(options)
    runner.quiet_collector()
    uvloop.run(_serve_until_told(server, listener, pipe, layers))
    engine.shutdown()


async def _serve_until_told(
    server: uvicorn.Server, listener: Any, pipe: Connection, layers: Layers | None
) -> None:
    asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: _stop(server))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    pipe.send(listener.getsockname()[1])
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
