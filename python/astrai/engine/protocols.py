"""What the scheduler's thread calls in a step, as protocols: the forward and the text streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from astrai.engine.engine_task import EngineTask
from astrai.engine.plan import StepGroup
from astrai.engine.request import FinishReason
from astrai.sampling import SampledRows

__all__ = ["Executor", "LaunchedStep", "TextEventLike", "TextStreamsLike"]


class LaunchedStep(Protocol):
    """A group that is being computed."""

    def wait(self) -> None:
        """Until it is done. Raises what went wrong."""
        ...

    def result(self) -> SampledRows:
        """What it has drawn, once it is done; to be asked once."""
        ...


class Executor(Protocol):
    """Computes groups in the order of their launches."""

    @property
    def runs_ahead(self) -> bool:
        """Whether a group may be launched before the one before it is done: its tokens that are
        not known yet come from where they are drawn."""
        ...

    @property
    def padded_sizes(self) -> Sequence[int]:
        """Rising numbers of rows to which steps with chunks of prompts are padded; none where they
        are not."""
        ...

    @property
    def query_tile(self) -> int:
        """Tokens of a chunk of a prompt that attention takes together; fewer take it as long."""
        ...

    def launch(self, group: StepGroup[EngineTask], slots: list[int]) -> LaunchedStep: ...


class TextEventLike(Protocol):
    """`_C.TextEvent`."""

    @property
    def handle(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def finish(self) -> FinishReason | None: ...
    @property
    def stop_string(self) -> str | None: ...


class TextStreamsLike(Protocol):
    """The part of `_C.TextStreams` that the scheduler calls."""

    def open(
        self,
        stop: list[str],
        stop_ids: list[int],
        max_tokens: int,
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special: bool = True,
        strip_leading_space: bool = False,
        shown_ids: Sequence[int] = (),
    ) -> int: ...
    def push_texts(
        self, handles: list[int], token_ids: list[int]
    ) -> tuple[list[str], Sequence[TextEventLike]]: ...
    def finish(self, handle: int) -> str: ...
    def close(self, handle: int) -> None: ...
