"""A task together with what the engine keeps for its client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from astrai.engine.request import FinishReason, TokenEvent
from astrai.engine.task import Task
from astrai.sampling import SamplingParams, TokenLogprob
from astrai.structured import CompiledGrammar

__all__ = ["EngineTask", "EventSink"]

EventSink = Callable[[list[TokenEvent]], None]


@dataclass(slots=True, eq=False)
class EngineTask(Task):
    """sampler_slot and text_handle live from acceptance to the end, through preemptions.

    grammar: set when the next token can be drawn only after the last one has been read.
    pending_ids, pending_logprobs: generated since the last event; logprobs are None unless asked
    for.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: tuple[int, ...] = ()
    max_tokens: int = 1  # after clamping to the room
    on_event: EventSink = field(default=lambda _: None)
    every_token: bool = False
    n_prompt: int = 0
    grammar: CompiledGrammar | None = None
    submitted_at: float = 0.0
    sampler_slot: int = field(default=-1, init=False)
    text_handle: int = field(default=-1, init=False)
    n_output: int = field(default=0, init=False)
    pending_ids: list[int] = field(default_factory=list, init=False)
    pending_logprobs: list[TokenLogprob] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.params.logprobs is not None:
            self.pending_logprobs = []

    def next_event(self, token_id: int, text: str) -> TokenEvent:
        """The event that tells one token more than what is pending, which mostly is nothing."""
        if self.pending_ids or self.pending_logprobs is not None:
            self.pending_ids.append(token_id)
            return self.take_event(text)
        # Of each task in each step: TokenEvent(...) itself takes twice as long.
        return tuple.__new__(
            TokenEvent,
            (
                self.task_id,
                text,
                [token_id],
                None,
                None,
                None,
                None,
                self.n_prompt,
                self.n_cached,
                self.n_output,
            ),
        )

    def take_event(
        self,
        text: str,
        finish_reason: FinishReason | None = None,
        stop_string: str | None = None,
        error: str | None = None,
    ) -> TokenEvent:
        """The event that tells everything pending."""
        token_ids, self.pending_ids = self.pending_ids, []
        logprobs = self.pending_logprobs
        if logprobs is not None:
            self.pending_logprobs = []
        return TokenEvent(
            self.task_id,
            text,
            token_ids,
            logprobs,
            finish_reason,
            stop_string,
            error,
            self.n_prompt,
            self.n_cached,
            self.n_output,
        )
