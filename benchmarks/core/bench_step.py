"""Times what the engine itself costs in a step: scheduling, plan, text and events of 64 running
requests, with a model that computes nothing.

The step is measured as the engine runs it, on its own thread: from the end of one step to the end
of the next, less what the model and the sampler took.
PYTHONPATH=python python -m benchmarks.core.bench_step --write   # results/engine_step.{json,md}
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.results_file import write_results

from astrai import _C
from astrai.engine import GenerationRequest, InferenceScheduler, InProcessClient, TokenEvent
from astrai.engine.executor import StepExecutor
from astrai.kvcache import PagePool
from astrai.sampling import SampledRows, Sampler, SamplingParams
from astrai.structured import GrammarCompiler

N_REQUESTS = 64
N_PROMPT = 200
N_OUTPUT = 600
WARM_UP_STEPS = 100
VOCAB_SIZE = 512
PAGE_SIZE = 16


class NoModel:
    """Ready-made logits that differ from step to step."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = [torch.randn(N_REQUESTS, VOCAB_SIZE, generator=generator) for _ in range(16)]
        self.n_forwards = 0

    def forward(
        self, input_ids: Any, position_ids: Any, kv_cache: Any, fwd: Any, logits_indices: Any = None
    ) -> torch.Tensor:
        self.n_forwards += 1
        # A copy: the sampler may write into what it gets.
        return self.logits[self.n_forwards % 16][: len(logits_indices)].clone()


class Stopwatch:
    """Time spent in one function, read and reset once a step."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        begin = time.perf_counter()
        result = self._work(*args)
        self.seconds += time.perf_counter() - begin
        return result

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class TimedSampler(Sampler):
    def __init__(self) -> None:
        super().__init__(VOCAB_SIZE)
        self.watch = Stopwatch(super().sample)

    def sample(self, logits: torch.Tensor, slots: Any) -> SampledRows:
        result: SampledRows = self.watch(logits, slots)
        return result


def measure(params: SamplingParams) -> list[dict[str, float]]:
    """Microseconds of each step in which all requests decode: of the engine, plan and sampler."""
    pool = PagePool(
        1, 1, 1, N_REQUESTS, 1024, "cpu", torch.float32, PAGE_SIZE, N_REQUESTS * 1024, n_heads=1
    )
    plan = Stopwatch(pool.plan_step)
    pool.plan_step = plan  # type: ignore[method-assign]
    sampler = TimedSampler()
    model = NoModel()
    forward = Stopwatch(model.forward)
    model.forward = forward  # type: ignore[method-assign]
    pieces = [f" word{i}".encode() for i in range(VOCAB_SIZE)]
    streams = _C.TextStreams(_C.TokenTable(pieces, bytes(VOCAB_SIZE)))
    steps: list[dict[str, float]] = []
    last = 0.0

    def after_step() -> None:
        nonlocal last
        now = time.perf_counter()
        sampling, planning, model_s = sampler.watch.take(), plan.take(), forward.take()
        engine = now - last - sampling - model_s
        steps.append({"engine": engine * 1e6, "plan": planning * 1e6, "sampler": sampling * 1e6})
        last = time.perf_counter()

    scheduler = InferenceScheduler(
        pool.host,
        StepExecutor(model, pool, sampler),
        sampler,
        streams,
        max_open=N_REQUESTS,
        prefill_chunk=None,
        after_step=after_step,
    )
    grammars = GrammarCompiler(None, VOCAB_SIZE)
    client = InProcessClient(scheduler, pool.host, VOCAB_SIZE, (), grammars)
    n_open = N_REQUESTS
    all_done = threading.Event()

    def sink(events: list[TokenEvent]) -> None:
        nonlocal n_open
        n_open -= sum(event.finish_reason is not None for event in events)
        if n_open == 0:
            all_done.set()

    for i in range(N_REQUESTS):
        client.submit(GenerationRequest([i] * N_PROMPT, params), sink)
    scheduler.start()
    assert all_done.wait(300)
    scheduler.stop()
    return steps[WARM_UP_STEPS : N_OUTPUT - 1]


CASES = {
    "greedy": SamplingParams(temperature=0, max_tokens=N_OUTPUT, stop=("\n\nUser:",)),
    "seeded, top_k 50, top_p 0.9": SamplingParams(seed=1, top_p=0.9, max_tokens=N_OUTPUT),
    "greedy, logprobs 5": SamplingParams(temperature=0, logprobs=5, max_tokens=N_OUTPUT),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/engine_step.*")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are tiny; threads would measure the machine's load
    rows: list[dict[str, object]] = []
    for name, params in CASES.items():
        steps = measure(params)
        engine = [step["engine"] for step in steps]
        rows.append(
            {
                "case": name,
                "engine_median_us": round(statistics.median(engine), 1),
                "engine_p5_us": round(statistics.quantiles(engine, n=20)[0], 1),
                "engine_p95_us": round(statistics.quantiles(engine, n=20)[-1], 1),
                "of_which_plan_us": round(statistics.median(step["plan"] for step in steps), 1),
                "sampler_median_us": round(statistics.median(step["sampler"] for step in steps), 1),
            }
        )
    write_results(
        "engine_step",
        f"One step of the engine for {N_REQUESTS} running requests, without the model",
        f"All requests decode, pages of {PAGE_SIZE}, {N_PROMPT} prompt tokens, steps "
        f"{WARM_UP_STEPS} to {N_OUTPUT - 1}, an event for each request in each step. engine: "
        "scheduling, plan, text and events (everything but model and sampler). sampler: vocabulary "
        f"of {VOCAB_SIZE}. Target: engine under 1000 us.",
        rows,
        Path(__file__).parents[1] / "results" if args.write else None,
    )


if __name__ == "__main__":
    main()
