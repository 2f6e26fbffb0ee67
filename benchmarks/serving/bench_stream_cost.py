"""Times what streaming itself costs: many streams over a model that computes nothing.

Server and client are two processes. Host time is CPU time of the server's threads as the kernel
counts it, so that other work on the machine stretches it little.
PYTHONPATH=python python -m benchmarks.serving.bench_stream_cost --write   # results/stream_cost.*
With --engine-process too: results/engine_process.*
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.results_file import write_results
from benchmarks.serving.no_op_engine import CONTEXT, N_KEPT, TIMES_BYTES, Conditions
from benchmarks.serving.no_op_server import serve

PACE_S = 0.05  # 20 tokens a second for each stream
N_TOKENS = 300
N_FIRST_BYTES = 100
PLACES = ("in process", "own process")  # of the engine
LARGE_PROMPT_CHARS = 1_000_000
_EVENTS = {"/v1/chat/completions": b'"content":"', "/v1/completions": b'"text":"'}


@dataclass(frozen=True)
class Case:
    """pace_s: time from token to token of a stream, 0 for none."""

    n_streams: int
    pace_s: float
    path: str = "/v1/chat/completions"
    in_child: bool = False

    def conditions(self) -> Conditions:
        return Conditions(pace_s=self.pace_s, max_batch_size=self.n_streams, in_child=self.in_child)

    def name(self) -> str:
        pace = f"{1 / self.pace_s:.0f} tokens/s each" if self.pace_s else "no pace"
        return f"{self.n_streams} streams, {pace}, {self.path.removeprefix('/v1/')}"


CASES = {
    "paced": [
        Case(16, PACE_S),
        Case(128, PACE_S),
        Case(256, PACE_S),
        Case(256, PACE_S, "/v1/completions"),
    ],
    "unpaced": [Case(128, 0.0)],
}

# Steps as long as those of a GPU too, where the time that one thread takes from the other shows.
ENGINE_PROCESS_CASES = [
    Case(1, 0.004),
    Case(128, PACE_S),
    Case(256, PACE_S),
    Case(64, 0.004),
    Case(128, 0.01),
    Case(128, 0.0),
]


@dataclass
class Server:
    pid: int
    port: int
    engine_pid: int
    times_file: Path
    layers: dict[str, float] = field(default_factory=dict)

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds so far of the event loop's thread and of all others, those of the engine's
        process included."""
        loop = others = 0.0
        for pid in {self.pid, self.engine_pid}:
            for task in Path(f"/proc/{pid}/task").iterdir():
                seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
                if task.name == str(self.pid):
                    loop += seconds
                else:
                    others += seconds
        return loop, others

    def first_token_ns(self) -> int:
        return self._times()[0]

    def gaps_ms(self) -> list[float]:
        """From the end of a step to the launch of the next, of the last ones."""
        _, n_steps, *gaps = self._times()
        return [gap / 1e6 for gap in gaps[: min(n_steps, N_KEPT)]]

    def _times(self) -> list[int]:
        return memoryview(self.times_file.read_bytes()).cast("q").tolist()


@contextmanager
def running(conditions: Conditions) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    times_file = Path(tempfile.mkdtemp()) / "times"
    times_file.write_bytes(bytes(TIMES_BYTES))
    conditions = replace(conditions, times_file=str(times_file))
    process = context.Process(target=serve, args=(theirs, conditions))
    process.start()
    theirs.close()  # so that a server that ends early is an end of file here
    try:
        port, engine_pid = ours.recv()
        server = Server(process.pid or 0, port, engine_pid, times_file)
        yield server
        ours.send("stop")
        server.layers = ours.recv()
    finally:
        process.join(30)
        process.kill()
        shutil.rmtree(times_file.parent)


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def chat(prompt: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, **streamed(max_tokens)}


def streamed(max_tokens: int) -> dict[str, Any]:
    return {"max_tokens": max_tokens, "stream": True, "ignore_eos": True}


@dataclass
class Stream:
    """n_events with text, and when each read came."""

    n_events: int = 0
    arrivals_s: list[float] = field(default_factory=list)


async def read_stream(
    port: int, body: dict[str, Any], stream: Stream, path: str = "/v1/chat/completions"
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(path, body))
    event = _EVENTS[path]
    tail = b""
    while b"[DONE]" not in tail:
        read = await reader.read(65536)
        assert read, tail
        stream.arrivals_s.append(time.monotonic())
        stream.n_events += read.count(event)
        tail = (tail + read)[-64:]
    writer.close()


async def read_streams(
    port: int, count: int, n_tokens: int, path: str = "/v1/chat/completions"
) -> list[Stream]:
    streams = [Stream() for _ in range(count)]
    prompts = [f"Tell me about number {i}." for i in range(count)]
    if path == "/v1/completions":
        bodies = [{"prompt": prompt, **streamed(n_tokens)} for prompt in prompts]
    else:
        bodies = [chat(prompt, n_tokens) for prompt in prompts]
    pairs = zip(bodies, streams, strict=True)
    await asyncio.gather(*(read_stream(port, body, stream, path) for body, stream in pairs))
    return streams


def host_cost(case: Case) -> dict[str, object]:
    conditions = case.conditions()
    with running(conditions) as server:
        asyncio.run(read_streams(server.port, case.n_streams, 20, case.path))  # warm-up
        loop_before, others_before = server.cpu_s()
        begin = time.monotonic()
        streams = asyncio.run(read_streams(server.port, case.n_streams, N_TOKENS, case.path))
        wall_s = time.monotonic() - begin
        loop, others = server.cpu_s()
        gaps = sorted(server.gaps_ms()[-N_TOKENS:])
    n_tokens = case.n_streams * N_TOKENS
    loop_us = (loop - loop_before) / n_tokens * 1e6
    scheduler_us = (others - others_before) / n_tokens * 1e6
    return {
        "case": case.name(),
        "host_us_per_token": round(loop_us + scheduler_us, 1),
        "event_loop_us": round(loop_us, 1),
        "scheduler_us": round(scheduler_us, 1),
        "gap_p50_ms": round(gaps[len(gaps) // 2], 2),
        "gap_p90_ms": round(gaps[len(gaps) * 9 // 10], 2),
        "tokens_per_s": round(n_tokens / wall_s),
        "tokens_per_event": round(n_tokens / sum(s.n_events for s in streams), 2),
    }


def shares_of_the_loop(case: Case) -> dict[str, object]:
    with running(replace(case.conditions(), times_layers=True)) as server:
        asyncio.run(read_streams(server.port, case.n_streams, N_TOKENS, case.path))
    n_tokens = case.n_streams * N_TOKENS
    return {
        f"{name}_us": round(seconds / n_tokens * 1e6, 1) for name, seconds in server.layers.items()
    }


def first_byte_ms(in_child: bool = False) -> list[float]:
    """From the end of the step that gave the first token to the client's read of its event."""

    async def ask(server: Server) -> float:
        stream = Stream()
        await read_stream(server.port, chat("Hello", 1), stream)
        return (stream.arrivals_s[0] * 1e9 - server.first_token_ns()) / 1e6

    with running(Conditions(in_child=in_child)) as server:
        asyncio.run(ask(server))
        return [asyncio.run(ask(server)) for _ in range(N_FIRST_BYTES)]


def large_prompt_delay_ms() -> dict[str, float]:
    """The longest gap between two reads of paced streams, without and beside a 1 MB prompt."""
    prompt = ("The quick brown fox jumps over the lazy dog. " * 25_000)[:LARGE_PROMPT_CHARS]

    def longest_gap(streams: list[Stream], since_s: float) -> float:
        gaps = [
            after - before
            for s in streams
            for before, after in zip(s.arrivals_s, s.arrivals_s[1:], strict=False)
            if before > since_s
        ]
        return max(gaps) * 1000

    async def measure(port: int) -> dict[str, float]:
        await read_streams(port, 8, 10)
        began = time.monotonic()
        quiet = await read_streams(port, 8, 80)
        loud = [Stream() for _ in range(8)]
        reading = [
            asyncio.create_task(read_stream(port, chat(f"Number {i}", 200), s))
            for i, s in enumerate(loud)
        ]
        await asyncio.sleep(1)
        sent = time.monotonic()
        large = Stream()
        await read_stream(port, chat(prompt, 2), large)
        answered = time.monotonic() - sent
        await asyncio.gather(*reading)
        return {
            "quiet": longest_gap(quiet, began),
            "beside_1_mb": longest_gap(loud, sent - 0.1),
            "large_answer_s": answered,
        }

    conditions = Conditions(pace_s=PACE_S, max_batch_size=16, max_seq_len=CONTEXT)
    with running(conditions) as server:
        return asyncio.run(measure(server.port))


def compare_engine_process(folder: Path | None) -> None:
    """The engine in the server's process beside one in its own, in turn."""
    rows: list[dict[str, object]] = []
    for case in ENGINE_PROCESS_CASES:
        for in_child in (False, True):
            place = {"engine": PLACES[in_child]}
            rows.append(place | host_cost(replace(case, in_child=in_child)))
            print(rows[-1], flush=True)
    first = {PLACES[in_child]: first_byte_ms(in_child) for in_child in (False, True)}
    title = "Streaming with the engine in a process of its own: no model, the real loop"
    conditions = (
        f"Completions streamed, {N_TOKENS} tokens each. Microseconds of CPU time a token; the "
        "scheduler's are of all threads but the event loop's. Gap: from the end of a step to the "
        "launch of the next, for which a GPU would wait. First byte after its token, one "
        "request at a time: "
        + ", ".join(
            f"{place} median {statistics.median(delays):.2f} ms, p90 "
            f"{statistics.quantiles(delays, n=10)[-1]:.2f} ms"
            for place, delays in first.items()
        )
        + f" ({N_FIRST_BYTES} requests). Server, engine and client share "
        f"{os.cpu_count()} cores."
    )
    print(conditions, flush=True)
    write_results("engine_process", title, conditions, rows, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/stream_cost.*")
    parser.add_argument("--only", choices=["paced", "unpaced", "first", "large"])
    parser.add_argument(
        "--engine-process", action="store_true", help="compare the engine's places, nothing else"
    )
    args = parser.parse_args()
    results = Path(__file__).parents[1] / "results" if args.write else None
    if args.engine_process:
        compare_engine_process(results)
        return
    rows: list[dict[str, object]] = []
    for kind, cases in CASES.items():
        for case in cases if args.only in (None, kind) else ():
            rows.append({**host_cost(case), **shares_of_the_loop(case)})
            print(rows[-1], flush=True)
    conditions = ""
    if args.only in (None, "first"):
        delays = first_byte_ms()
        conditions += (
            f"First byte after its token: median {statistics.median(delays):.2f} ms, "
            f"p90 {statistics.quantiles(delays, n=10)[-1]:.2f} ms, {N_FIRST_BYTES} requests, one "
            "at a time. "
        )
        print(conditions, flush=True)
    if args.only in (None, "large"):
        gaps = large_prompt_delay_ms()
        conditions += (
            f"Longest gap between two reads of 8 streams at 20 tokens/s: {gaps['quiet']:.0f} ms, "
            f"beside a prompt of 1 MB {gaps['beside_1_mb']:.0f} ms (the prompt's own answer took "
            f"{gaps['large_answer_s']:.1f} s)."
        )
        print(conditions, flush=True)
    if args.only is None:
        title = "What streaming costs: no model, the real loop, a client in another process"
        conditions = (
            f"Completions streamed, one event a token, {N_TOKENS} tokens each. Microseconds of CPU "
            "time a token. The last three are of a second run, whose clock costs 1 to 2 us a call, "
            "and parts of the event loop's: JSON and framing, what goes through the application's "
            "layers, and what is sent around them, which is done without the interpreter's lock. "
            + conditions
        )
        write_results("stream_cost", title, conditions, rows, results)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
