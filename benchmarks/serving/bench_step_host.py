"""Times what a decode step takes of the host, over a pretended device that runs ahead.

Everything but the device's own work is the real thing: scheduler, staging and plan of the step,
text, events and, in the rows "with HTTP", a server whose streams a client in another process reads.
The host's time is what `astrai_step_host_seconds` of /metrics says.
PYTHONPATH=python python -m benchmarks.serving.bench_step_host --write   # results/step_host.*
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.results_file import write_results
from benchmarks.serving.bench_http_engine import metrics
from benchmarks.serving.bench_stream_cost import read_streams, running
from benchmarks.serving.no_op_engine import Conditions
from benchmarks.serving.pretended_device import HostSampler, PretendedDevice, PretendedStep

from astrai import _C
from astrai.engine import GenerationRequest, InferenceScheduler, InProcessClient, TokenEvent
from astrai.engine.publisher import Publisher
from astrai.engine.scheduling_state import SchedulingState
from astrai.kvcache import PagePool
from astrai.sampling import SamplingParams
from astrai.server.collector import quiet_collector
from astrai.structured import GrammarCompiler

N_STREAMS = (64, 256)
N_PROMPT, N_OUTPUT = 200, 500
WARM_UP_STEPS = 100
N_RUNS = 5  # without HTTP, the best of which counts: other work on the machine stretches them
VOCAB_SIZE = 32_000
PAGE_SIZE = 16
STEP_S = 0.03  # of the device, with HTTP: that of an 8B model with 256 streams

PHASES: dict[str, tuple[type, str]] = {
    "plan ahead?": (SchedulingState, "can_plan_ahead"),
    "plan": (SchedulingState, "plan"),
    "launch": (InferenceScheduler, "_launch"),
    "read": (PretendedStep, "result"),
    "publish": (Publisher, "publish"),
}


class Phases:
    """Seconds of each phase in each step, while it is entered."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._step: dict[str, float] = defaultdict(float)
        self._originals = [(owner, name, getattr(owner, name)) for owner, name in PHASES.values()]

    def __enter__(self) -> Phases:
        for phase, (owner, name) in PHASES.items():
            setattr(owner, name, self._timed(phase, getattr(owner, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)

    def end_step(self) -> None:
        self.steps.append(dict(self._step))
        self._step.clear()

    def _timed(self, phase: str, work: Any) -> Any:
        def timed(*args: Any) -> Any:
            begin = time.perf_counter()
            result = work(*args)
            self._step[phase] += time.perf_counter() - begin
            return result

        return timed


def without_http(n: int) -> dict[str, float]:
    """Medians in microseconds of the steps in which all of n requests decode."""
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=N_OUTPUT)
    pool = PagePool(1, 1, 1, n, 1024, "cpu", torch.float32, PAGE_SIZE, n * 1024, n_heads=1)
    sampler = HostSampler(VOCAB_SIZE, n)
    device = PretendedDevice(pool, sampler, [300, 400, 500, 600], 0.0)
    pieces = [f" word{i}".encode() for i in range(VOCAB_SIZE)]
    streams = _C.TextStreams(_C.TokenTable(pieces, bytes(VOCAB_SIZE)))
    n_open = n
    all_done = threading.Event()

    def sink(events: list[TokenEvent]) -> None:
        nonlocal n_open
        if events[0].finish_reason is not None:
            n_open -= len(events)
            if n_open == 0:
                all_done.set()

    with Phases() as phases:
        scheduler = InferenceScheduler(
            pool.host,
            device,
            sampler,
            streams,
            max_open=n,
            prefill_chunk=None,
            after_step=phases.end_step,
        )
        grammars = GrammarCompiler(None, VOCAB_SIZE)
        client = InProcessClient(scheduler, pool.host, VOCAB_SIZE, (), grammars)
        for i in range(n):
            client.submit(GenerationRequest([i] * N_PROMPT, params), sink)
        scheduler.start()
        assert all_done.wait(300)
        host_s = list(scheduler._stats._host._recent)
        scheduler.stop()
    steps = phases.steps[WARM_UP_STEPS : N_OUTPUT - 1]
    medians = {
        phase: statistics.median(step.get(phase, 0.0) for step in steps) * 1e6 for phase in PHASES
    }
    host_s = sorted(host_s[WARM_UP_STEPS : N_OUTPUT - 1])
    whole, least = (host_s[len(host_s) * share // 100] * 1e6 for share in (50, 5))
    return {"host_us": whole, "host_p5_us": least, **medians, "rest": whole - sum(medians.values())}


def with_http(n: int) -> dict[str, float]:
    """host_us: mean of the steps between two looks that find all of n streams running."""
    looks: list[tuple[float, float]] = []
    itl_s: list[float] = []
    with running(Conditions(max_batch_size=n, device_step_s=STEP_S)) as server:
        asyncio.run(read_streams(server.port, n, 20))  # warm-up

        def look() -> None:
            while reader.is_alive():
                time.sleep(0.1)
                values = metrics(server.port)
                if values["astrai_num_requests_running"] == n:
                    name = "astrai_step_host_seconds"
                    looks.append((values[f"{name}_sum"], values[f"{name}_count"]))

        def read() -> None:
            for stream in asyncio.run(read_streams(server.port, n, N_OUTPUT)):
                at = stream.arrivals_s[20:-1]
                itl_s.extend(after - before for before, after in itertools.pairwise(at))

        reader = threading.Thread(target=read)
        reader.start()
        cpu_before = server.cpu_s()
        look()
        reader.join()
        loop_s, engine_s = (b - a for a, b in zip(cpu_before, server.cpu_s(), strict=True))
    seconds, steps = (last - first for first, last in zip(looks[0], looks[-1], strict=True))
    itl_s.sort()
    return {
        "host_us": 1e6 * seconds / steps,
        "steps": steps,
        "itl_p50_ms": 1e3 * itl_s[len(itl_s) // 2],
        "itl_p99_ms": 1e3 * itl_s[len(itl_s) * 99 // 100],
        "loop_ms_a_step": 1e3 * loop_s / N_OUTPUT,
        "engine_ms_a_step": 1e3 * engine_s / N_OUTPUT,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/step_host.*")
    parser.add_argument("--http", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--before", type=Path, help="a step_host.json whose rows to show above")
    args = parser.parse_args()
    torch.set_num_threads(1)
    quiet_collector()
    rows: list[dict[str, object]] = []
    if args.before is not None:
        before = json.loads(args.before.read_text())
        commit = before["machine"]["commit"]
        rows += [{**row, "case": f"{row['case']}, at {commit}"} for row in before["rows"]]

    def add(case: str, figures: dict[str, float], digits: int | None = None) -> None:
        rows.append({"case": case, **{name: round(v, digits) for name, v in figures.items()}})
        print(rows[-1], flush=True)

    for n in N_STREAMS:
        runs = [without_http(n) for _ in range(N_RUNS)]
        add(f"{n} requests", min(runs, key=lambda figures: figures["host_us"]))
    for n in N_STREAMS if args.http else ():
        add(f"{n} streams with HTTP", with_http(n), 1)
    columns = dict.fromkeys([name for row in rows for name in row], "")
    rows = [{**columns, **row} for row in rows]
    write_results(
        "step_host",
        "What a decode step takes of the host: a pretended device, the real loop",
        f"Microseconds of the scheduler's thread, median of steps {WARM_UP_STEPS} to "
        f"{N_OUTPUT - 1} in the best of {N_RUNS} runs and, with HTTP, mean of all steps in which "
        f"every stream ran, with steps of {STEP_S * 1e3:.0f} ms. Kernel launches are not in it; "
        "waiting for the interpreter's lock is, and so is waiting for a core. plan ahead?: whether "
        "the next step needs results. launch: staging, parameters of the draws, copies. read: ids "
        "to the host's numbers. publish: text and events. Loop and engine: CPU time of the event "
        "loop's thread and of all others. Server and client "
        f"share {os.cpu_count()} cores.",
        rows,
        Path(__file__).parents[1] / "results" if args.write else None,
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
