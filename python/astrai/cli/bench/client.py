"""Sends a workload to a server with OpenAI's completions and times every event of the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from astrai.cli.bench.workload import BenchRequest

__all__ = ["Answer", "Target", "first_model", "run_requests"]


@dataclass(frozen=True, slots=True)
class Target:
    """url: up to and with /v1. sampling: fields of the request's body, beside its own."""

    url: str
    model: str
    headers: dict[str, str]
    sampling: dict[str, Any]


@dataclass(slots=True)
class Answer:
    """One request as its client saw it. Times are seconds from the start of the run.

    event_s: when each event with text or a token arrived. n_output, n_cached: as the server's
    usage tells; n_output is the number of events where it tells nothing.
    """

    sent_s: float
    n_prompt: int
    event_s: list[float] = field(default_factory=list)
    n_output: int = 0
    n_cached: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.event_s[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.event_s[-1] - self.sent_s


def first_model(url: str, headers: dict[str, str]) -> str:
    """The name of the first model that the server lists. Raises httpx.HTTPError, ValueError."""
    response = httpx.get(f"{url}/models", headers=headers, timeout=10)
    response.raise_for_status()
    try:
        name: str = response.json()["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"{url}/models names no model; give one by --served-model") from None
    return name


async def run_requests(
    target: Target,
    requests: list[BenchRequest],
    concurrency: int | None,
    on_answer: Callable[[Answer], None],
) -> list[Answer]:
    """The answers in the order of the requests; on_answer is called as each one ends."""
    slots = asyncio.Semaphore(concurrency or len(requests))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(headers=target.headers, timeout=None, limits=limits) as client:
        began_s = time.perf_counter()

        async def one(request: BenchRequest) -> Answer:
            await asyncio.sleep(request.at_s - (time.perf_counter() - began_s))
            async with slots:
                answer = await _answer(client, target, request, began_s)
            on_answer(answer)
            return answer

        return await asyncio.gather(*map(one, requests))


async def _answer(
    client: httpx.AsyncClient, target: Target, request: BenchRequest, began_s: float
) -> Answer:
    answer = Answer(time.perf_counter() - began_s, len(request.prompt_ids))
    body = {
        "model": target.model,
        "prompt": request.prompt_ids,
        "max_tokens": request.n_output,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.sampling,
    }
    try:
        async with client.stream("POST", f"{target.url}/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread())[:200].decode(errors="replace")
                answer.error = f"{response.status_code} {text}"
                return answer
            async for line in response.aiter_lines():
                _read_event(line, answer, began_s)
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    if answer.error is None and not answer.event_s:
        answer.error = "the answer held no token"
    answer.n_output = answer.n_output or len(answer.event_s)
    return answer


def _read_event(line: str, answer: Answer, began_s: float) -> None:
    if not line.startswith("data: ") or line == "data: [DONE]":
        return
    now_s = time.perf_counter() - began_s
    event = orjson.loads(line[6:])
    if "error" in event:
        answer.error = str(event["error"])[:200]
    if event.get("choices"):
        answer.event_s.append(now_s)
    if usage := event.get("usage"):
        answer.n_output = usage.get("completion_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        answer.n_cached = details.get("cached_tokens") or 0
