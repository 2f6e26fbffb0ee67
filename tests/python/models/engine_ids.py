"""Greedy ids of an engine, for tests that compare them."""

from __future__ import annotations

from queue import Queue

from astrai.engine import GenerationRequest, InferenceEngine, TokenEvent
from astrai.sampling import SamplingParams


def greedy_ids(engine: InferenceEngine, prompts: list[list[int]], n_new: int) -> list[list[int]]:
    """n_new greedy ids of each prompt, all submitted at once; ends of text do not count."""
    arrived: Queue[list[TokenEvent]] = Queue()
    params = SamplingParams(temperature=0, max_tokens=n_new, ignore_eos=True)
    requests = [GenerationRequest(prompt, params, every_token=True) for prompt in prompts]
    names = [engine.client.submit(request, arrived.put) for request in requests]
    texts: dict[str, list[int]] = {name: [] for name in names}
    n_finished = 0
    while n_finished < len(prompts):
        for event in arrived.get(timeout=120):
            assert event.finish_reason in (None, "length"), event
            texts[event.request_id] += event.token_ids
            n_finished += event.finish_reason is not None
    return [texts[name] for name in names]
