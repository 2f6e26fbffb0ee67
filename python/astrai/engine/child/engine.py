"""`ChildEngine`: what a server uses of an `InferenceEngine`, of one in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astrai.engine.child.client import ChildClient
from astrai.engine.child.messages import EngineFacts
from astrai.engine.child.process import EngineProcess

if TYPE_CHECKING:
    from astrai.models.checkpoint import Checkpoint

__all__ = ["ChildEngine"]


class ChildEngine:
    """Text is of this process, tokens are of the other one."""

    def __init__(self, process: EngineProcess, facts: EngineFacts, checkpoint: Checkpoint) -> None:
        """process: ready. checkpoint: of the model that it has loaded."""
        self.tokenizer = checkpoint.tokenizer
        self.chat_template = checkpoint.chat_template
        self.config = checkpoint.config
        self.max_seq_len = facts.limits.max_seq_len
        self.sampling_defaults = facts.sampling_defaults
        self.client = ChildClient(process.channel, facts)
        self._process = process

    def shutdown(self) -> None:
        """End open requests and the process. Idempotent."""
        self.client.stop()
        self._process.wait_until_stopped()
