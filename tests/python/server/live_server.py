"""A running server over the fake engine, as the tests see it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import httpx
from fake_engine import FakeEngine, FakeScript


@dataclass
class Live:
    """A running server and a client for it."""

    engine: FakeEngine | None
    url: str
    http: httpx.Client

    @property
    def script(self) -> FakeScript:
        assert self.engine is not None
        return self.engine.script

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def stream(self, path: str, body: dict[str, Any]) -> str:
        """The raw text of a whole event stream."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return response.text

    def wait_idle(self) -> dict[str, Any]:
        for _ in range(3000):  # a minute
            stats: dict[str, Any] = self.http.get("/stats").json()
            if not stats["active_tasks"]:
                return stats
            time.sleep(0.02)
        raise AssertionError("the engine stays busy")
