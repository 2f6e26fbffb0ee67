"""An engine over a model that computes nothing, in this process or in one of its own.

Each step gives every request one token of plain text, at once or at a fixed pace.
"""

from __future__ import annotations

import itertools
import mmap
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from benchmarks.serving.pretended_device import HostSampler, PretendedDevice

from astrai.engine import InferenceEngine
from astrai.engine.child import (
    Channel,
    ChildEngine,
    EngineProcess,
    receive_settings,
    serve_engine,
)
from astrai.engine.executor import DoneStep
from astrai.models.checkpoint import open_gguf
from astrai.models.default_model import fetch_default_model
from astrai.sampling import SampledRows
from astrai.server.collector import quiet_collector

CONTEXT = 300_000  # holds a prompt of 1 MB
N_KEPT = 4096  # gaps of the last steps
TIMES_BYTES = 8 * (2 + N_KEPT)


@dataclass(frozen=True)
class Conditions:
    """pace_s: time from step to step, 0 for none. times_layers: count what the layers of
    `no_op_server.Layers` take, which costs something itself. max_batch_size: rows of the pool.
    in_child: the engine in a process of its own. device_step_s: where set, a pretended device that
    takes so long for a step and runs ahead (`pretended_device`) is in the place of the pace.
    times_file: TIMES_BYTES of 64-bit nanoseconds that the executor of the pace writes: the
    monotonic clock at the last first token; how many steps there were; then, for the last N_KEPT
    steps, the time from the end of one to the launch of the next, which is what a GPU would wait
    for."""

    pace_s: float = 0.0
    times_layers: bool = False
    max_batch_size: int = 128
    max_seq_len: int = 4096
    in_child: bool = False
    device_step_s: float = 0.0
    times_file: str = ""


class NoOpExecutor:
    """Gives every sampled task the next of some words, after the pause of the pace."""

    def __init__(self, word_ids: list[int], conditions: Conditions) -> None:
        self._words = itertools.cycle(word_ids)
        self._pace_s = conditions.pace_s
        self._next_at = 0.0
        with Path(conditions.times_file).open("r+b") as file:
            self._times = memoryview(mmap.mmap(file.fileno(), TIMES_BYTES)).cast("q")
        self._ended_at_ns = time.monotonic_ns()

    runs_ahead = False
    padded_sizes = ()
    query_tile = 1

    def launch(self, group: Any, slots: list[int]) -> DoneStep:
        n_steps = self._times[1]
        self._times[2 + n_steps % N_KEPT] = time.monotonic_ns() - self._ended_at_ns
        self._times[1] = n_steps + 1
        if self._pace_s:
            now = time.monotonic()
            self._next_at = max(self._next_at + self._pace_s, now)
            time.sleep(self._next_at - now)
        word = next(self._words)
        if any(task.n_output == 0 for task in group.tasks[: group.n_sampled]):
            self._times[0] = time.monotonic_ns()
        self._ended_at_ns = time.monotonic_ns()
        return DoneStep(SampledRows([word] * group.n_sampled, frozenset(), None))


def no_op_engine(conditions: Conditions) -> InferenceEngine:
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
    # The forward is what a no-op model leaves out.
    scheduler = engine._scheduler
    if conditions.device_step_s:
        sampler = HostSampler(config.vocab_size, n_rows)
        scheduler._publisher._sampler = sampler
        scheduler._executor = PretendedDevice(
            engine.cache, sampler, words, conditions.device_step_s
        )
    else:
        scheduler._executor = NoOpExecutor(words, conditions)
    return engine


def no_op_child(conditions: Conditions) -> tuple[ChildEngine, int]:
    """The engine of a new process, and that process's id."""
    process = EngineProcess(__name__)
    process.configure(asdict(conditions))
    checkpoint = open_gguf(fetch_default_model(progress=False))
    return ChildEngine(process, process.wait_until_ready(), checkpoint), process.pid


def main(channel_fd: int) -> int:
    """The process of `no_op_child`."""
    channel = Channel(socket.socket(fileno=channel_fd))
    fields = receive_settings(channel)
    assert fields is not None
    conditions = Conditions(**fields)
    engine = no_op_engine(conditions)
    quiet_collector()
    return serve_engine(engine, channel, conditions.max_batch_size + 256, [])
