"""The fake engine behind the channel of a child process, without the process."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

from fake_engine import MAX_SEQ_LEN, VOCAB_SIZE, FakeEngine

from astrai.engine.child import Channel, ChildClient, EngineFacts, EngineHost
from astrai.engine.limits import RequestLimits

MAX_OPEN = 64


def behind_a_channel(engine: FakeEngine, max_open: int = MAX_OPEN) -> Any:
    """What a server uses of the engine, whose host is a thread of this process. It ends with
    `shutdown`."""
    ours, theirs = socket.socketpair()
    host_channel = Channel(theirs)
    host = EngineHost(engine.client, host_channel)
    facts = EngineFacts(
        limits=RequestLimits(VOCAB_SIZE, MAX_SEQ_LEN, engine.max_seq_len),
        max_open=max_open,
        sampling_defaults=engine.sampling_defaults,
        numbers=host.numbers(),
        description=[],
    )

    def run() -> None:
        host.run()
        engine.shutdown()
        host_channel.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    channel = Channel(ours)
    client = ChildClient(channel, facts)

    def shutdown() -> None:
        client.stop()
        thread.join(10)
        channel.close()

    return SimpleNamespace(
        tokenizer=engine.tokenizer,
        chat_template=engine.chat_template,
        config=engine.config,
        max_seq_len=engine.max_seq_len,
        sampling_defaults=engine.sampling_defaults,
        client=client,
        shutdown=shutdown,
    )
