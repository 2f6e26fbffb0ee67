"""A model in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from astrai.cli.chat.source import ChatSource, Messages, Piece, Usage
from astrai.engine import InferenceEngine

__all__ = ["LocalSource"]


class LocalSource(ChatSource):
    """One engine with one request at a time; earlier turns stay in its prefix cache."""

    def __init__(self, model: str | None, device: str, dtype: str) -> None:
        """Loads the model. Raises ModelLoadError."""
        self._engine = InferenceEngine.from_pretrained(
            model, device=device, dtype=dtype, kv_mode="paged", max_batch_size=1
        )
        self.name = Path(model).stem if model else "the default model"
        self.usage = Usage()

    def reply(self, messages: Messages, sampling: dict[str, float | int]) -> Iterator[Piece]:
        before = self._counts()
        with closing(self._engine.chat(messages, stream=True, **sampling)) as pieces:
            for piece in pieces:
                yield Piece(piece)
        counts = [after - count for after, count in zip(self._counts(), before, strict=True)]
        self.usage = Usage(*counts)

    def close(self) -> None:
        self._engine.shutdown()

    def _counts(self) -> list[int]:
        stats: dict[str, Any] = self._engine.get_stats()
        return [stats[name] for name in ("prompt_tokens", "prefix_hit_tokens", "total_tokens")]
