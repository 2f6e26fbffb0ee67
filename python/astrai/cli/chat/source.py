"""What `astrai chat` talks to: the seam between the terminal and a model or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["ChatError", "ChatSource", "Piece", "Usage"]

Messages = list[dict[str, Any]]


class ChatError(Exception):
    """An answer that could not be had; the message is for the person at the terminal."""


class Piece(NamedTuple):
    """Text of an answer as it arrives. is_reasoning: thought before the answer, not part of it."""

    text: str
    is_reasoning: bool = False


@dataclass(slots=True)
class Usage:
    """Tokens of one answer; None where the source does not tell."""

    n_prompt: int | None = None
    n_cached: int | None = None
    n_output: int | None = None


class ChatSource(ABC):
    """A context manager; `usage` is about the last answer that ran to its end."""

    name: str
    usage: Usage

    @abstractmethod
    def reply(self, messages: Messages, sampling: dict[str, float | int]) -> Iterator[Piece]:
        """The next turn of the assistant, streamed. Closing the iterator stops the generation.
        Raises ChatError, ValueError for messages or parameters that are refused."""

    @abstractmethod
    def close(self) -> None:
        """Release what the source holds."""

    def __enter__(self) -> ChatSource:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
