"""An engine on a GPU in which a request can have a kernel fail, and the process that runs it:

    python trapping.py CASE     the engine's requests meet the error; prints as JSON what they hear
    main(channel_fd)            the same engine as a child of a server (`EngineProcess`)

The error is one that CUDA does not forgive: the device is lost to the process.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from contextlib import suppress
from typing import Any

import torch
from test_device_penalties import small_model
from test_engine_gpu import PROMPTS, VOCAB_SIZE, Collector, engine_of, greedy

from astrai.engine import EngineError, GenerationRequest, InferenceEngine
from astrai.engine.device_executor import DeviceExecutor
from astrai.extension import ops
from astrai.models.tensor_copy import StagedCopier
from astrai.sampling import SamplingParams

TRAP_ID = 95  # a prompt that starts with it has a kernel fail in the step that computes it
EXIT_STATUS = 3  # of a process that ends as Python's do
N_RUNNING = 8
# Options of the engine, and whether the error has been met before the step is launched.
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "result": ({}, False),
    "launch": ({}, True),
    "launch with a backend": ({"backend": "cuda"}, True),
    "eager": ({"enable_cuda_graph": False}, False),
    "no shutdown": ({}, False),
}


def trap() -> None:
    """Ask for the logprob of a token that there is not."""
    device = torch.device("cuda")
    logits = torch.zeros(1, VOCAB_SIZE, device=device)
    ops.top_logprobs(logits, torch.full((1,), 10**6, dtype=torch.int32, device=device), 1)


def install(is_early: bool = False) -> None:
    """is_early: the error is there when the step is launched, which then fails."""
    launch = DeviceExecutor.launch

    def trapping(self: DeviceExecutor, group: Any, slots: list[int]) -> Any:
        is_asked = any(task.token_ids[0] == TRAP_ID for task in group.tasks)
        if is_asked and is_early:
            trap()
            with suppress(RuntimeError):
                torch.cuda.synchronize()
        launched = launch(self, group, slots)
        if is_asked and not is_early:
            trap()
        return launched

    DeviceExecutor.launch = trapping  # type: ignore[method-assign]


def trapping_engine(**options: Any) -> InferenceEngine:
    # As weights of files come, through pinned memory of torch's, which is dropped in good time.
    source = torch.ones(4, 1000)
    StagedCopier(torch.device("cuda")).copy(source, torch.empty_like(source, device="cuda"), None)
    options = {"max_batch_size": N_RUNNING + 1, "kv_tokens": 65536} | options
    return engine_of(small_model(), max_seq_len=4096, **options)


def requests() -> list[GenerationRequest]:
    """More than run together, of every kind that has memory of its own on the way."""
    kinds: tuple[SamplingParams, ...] = (
        greedy(3900),
        greedy(3900, logprobs=3),
        greedy(3900, repetition_penalty=1.2, min_tokens=3000),
        SamplingParams(seed=1, top_k=0, max_tokens=3900, ignore_eos=True),
    )
    return [
        GenerationRequest([1, *prompt], kinds[i % len(kinds)]) for i, prompt in enumerate(PROMPTS)
    ]


def outcome(client: Any) -> dict[str, Any]:
    """What becomes of requests that run and wait as a kernel fails, and of one that comes after."""
    sink = Collector()
    ids = [client.submit(request, sink) for request in requests()[:N_RUNNING]]
    sink.wait_for(lambda: all(sink.token_ids(i) for i in ids))
    ids.append(client.submit(GenerationRequest([TRAP_ID, 2], greedy(5)), sink))
    for request in requests()[N_RUNNING:]:
        with suppress(EngineError):  # of an engine that is dead already
            ids.append(client.submit(request, sink))
    sink.wait_for(lambda: len(sink.ends()) == len(ids))
    refusal = None
    while client.is_healthy():  # a child is told of an end by its channel, after the events
        time.sleep(0.01)
    try:
        client.submit(GenerationRequest([1], greedy(1)), sink)
    except EngineError as error:
        refusal = type(error).__name__
    return {
        "reasons": sorted({str(end.finish_reason) for end in sink.ends().values()}),
        "errors": sorted({str(end.error) for end in sink.ends().values()}),
        "n_ended": len(ids),
        "refusal": refusal,
    }


def run(case: str) -> None:
    options, is_early = CASES[case]
    engine = trapping_engine(**options)
    install(is_early)
    found = outcome(engine.client)
    if case != "no shutdown":
        began_at = time.perf_counter()
        engine.shutdown()
        found["shutdown_s"] = time.perf_counter() - began_at
        del engine
        gc.collect()  # everything that is the device's is destroyed now
    print(json.dumps(found), flush=True)
    sys.exit(EXIT_STATUS)


def main(channel_fd: int) -> int:
    # Only a server needs them, which has what they import.
    import socket

    from astrai.engine.child import Channel, receive_settings, serve_engine

    channel = Channel(socket.socket(fileno=channel_fd))
    receive_settings(channel)
    engine = trapping_engine()
    install()
    return serve_engine(engine, channel, 64, [])


if __name__ == "__main__":
    run(sys.argv[1])
