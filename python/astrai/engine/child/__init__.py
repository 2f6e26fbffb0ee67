"""An engine in a process of its own, so that its thread shares no interpreter lock with a server.

    server's process                          engine's process
    ChildEngine, ChildClient  <- Channel ->   EngineHost, InferenceEngine

`messages` says what crosses, `process` starts and ends the other side.
"""

from __future__ import annotations

from astrai.engine.child.channel import Channel
from astrai.engine.child.client import ChildClient
from astrai.engine.child.engine import ChildEngine
from astrai.engine.child.host import EngineHost, receive_settings, serve_engine
from astrai.engine.child.messages import EngineFacts, EngineNumbers
from astrai.engine.child.process import EngineProcess

__all__ = [
    "Channel",
    "ChildClient",
    "ChildEngine",
    "EngineFacts",
    "EngineHost",
    "EngineNumbers",
    "EngineProcess",
    "receive_settings",
    "serve_engine",
]
