"""A client of streamed completions over HTTP that takes the time of every event.

One connection a request, token ids in, no library in between: the client should not be what a
server waits for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from benchmarks.serving.timeline import Timeline
from benchmarks.serving.workloads import TEMPERATURE, Work


def send(port: int, work: Sequence[Work], arrivals: Sequence[float]) -> list[Timeline]:
    """Send each request at its second and read all answers to their ends.

    Raises RuntimeError where one has not the tokens that were asked for."""
    return asyncio.run(_send(port, work, arrivals))


async def _send(port: int, work: Sequence[Work], arrivals: Sequence[float]) -> list[Timeline]:
    bodies = [_request(one) for one in work]  # made before the clock runs
    began_at = time.perf_counter()
    return await asyncio.gather(
        *(
            _one(port, body, at, began_at, one.n_output)
            for body, at, one in zip(bodies, arrivals, work, strict=True)
        )
    )


def _request(work: Work) -> bytes:
    body = {
        "model": "",
        "prompt": work.prompt_ids,
        "max_tokens": work.n_output,
        "temperature": TEMPERATURE,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


async def _one(port: int, request: bytes, at: float, began_at: float, n_output: int) -> Timeline:
    await asyncio.sleep(max(0.0, at - (time.perf_counter() - began_at)))
    timeline = Timeline(time.perf_counter() - began_at)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(request)
    status = await reader.readline()
    async for line in reader:
        # The sizes of chunks stand on lines of their own; an event is never cut.
        if line.startswith(b"data: {"):
            _note(line, timeline, time.perf_counter() - began_at)
        elif line.startswith(b"data: [DONE]"):
            timeline.is_ended = True
    writer.close()
    if not timeline.is_ended or timeline.n_tokens != n_output:
        raise RuntimeError(f"{timeline.n_tokens} of {n_output} tokens; status {status!r}")
    return timeline


def _note(line: bytes, timeline: Timeline, now: float) -> None:
    event = json.loads(line[6:])
    if event.get("choices"):
        timeline.times.append(now)
        timeline.n_chars += len(event["choices"][0]["text"])
    if event.get("usage"):
        timeline.n_tokens = event["usage"]["completion_tokens"]
