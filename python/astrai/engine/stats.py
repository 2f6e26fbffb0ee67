"""Counters and latencies of the engine, as /stats and /metrics show them.

Written by the scheduler's thread only; `snapshot` and `histograms` may run on any thread, which
sees single numbers that belong together up to one step.
"""

from __future__ import annotations

from astrai.engine.histogram import HOST_SECONDS, TOKENS, Histogram, HistogramSnapshot, Latency

__all__ = ["EngineStats"]


class EngineStats:
    """total_tasks and total_tokens count from the start; times are seconds."""

    def __init__(self) -> None:
        self.n_submitted = 0
        self.n_output_tokens = 0
        self.n_prompt_tokens = 0
        self.n_steps = 0
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "error": 0, "cancelled": 0}
        self._ttft = Latency()
        self._itl = Latency()
        self._queue = Latency()
        self._e2e = Latency()
        self._host = Latency(HOST_SECONDS)
        self._prompt_tokens = Histogram(TOKENS)
        self._output_tokens = Histogram(TOKENS)

    def admitted(self, queue_s: float) -> None:
        """A task left the waiting queue for the first time."""
        self._queue.observe(queue_s)

    def first_token(self, ttft_s: float) -> None:
        self._ttft.observe(ttft_s)

    def decode_step(self, itl_s: float, n_tokens: int) -> None:
        """The time between two steps in a row, which is the time between two tokens of each of
        the n_tokens tasks that decoded in both."""
        self._itl.observe(itl_s, n_tokens)

    def host_step(self, host_s: float) -> None:
        """What a step took of the host: reading what clients left, planning, launching, text and
        events, without what is computed meanwhile."""
        self._host.observe(host_s)

    def task_finished(self, reason: str, e2e_s: float, n_prompt: int, n_output: int) -> None:
        self.finished[reason] += 1
        self._e2e.observe(e2e_s)
        self._prompt_tokens.observe(n_prompt)
        self._output_tokens.observe(n_output)

    def mean_duration_s(self) -> float:
        """Of recent requests; 1 when there is none."""
        return self._e2e.mean(default=1.0)

    def snapshot(self) -> dict[str, object]:
        return {
            "total_tasks": self.n_submitted,
            "total_tokens": self.n_output_tokens,
            "prompt_tokens": self.n_prompt_tokens,
            "steps": self.n_steps,
            "finished": dict(self.finished),
            "ttft_s": self._ttft.percentiles(),
            "itl_s": self._itl.percentiles(),
            "queue_s": self._queue.percentiles(),
            "e2e_s": self._e2e.percentiles(),
            "host_s": self._host.percentiles(),
        }

    def histograms(self) -> dict[str, HistogramSnapshot]:
        """Distributions since the start: latencies in seconds, lengths in tokens."""
        return {
            "ttft_s": self._ttft.histogram.snapshot(),
            "itl_s": self._itl.histogram.snapshot(),
            "queue_s": self._queue.histogram.snapshot(),
            "e2e_s": self._e2e.histogram.snapshot(),
            "host_s": self._host.histogram.snapshot(),
            "prompt_tokens": self._prompt_tokens.snapshot(),
            "output_tokens": self._output_tokens.snapshot(),
        }
