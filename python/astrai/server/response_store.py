"""Responses that were answered with `store`: what later ones continue and GET shows.

In memory and bounded: the least recently used ones go first. Thread safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from astrai.server.errors import ApiError

_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """response: as it was sent. input_items: everything that the model was given, oldest first,
    what earlier responses gave included. n_bytes: of both, as JSON."""

    response: dict[str, Any]
    input_items: list[dict[str, Any]]
    n_bytes: int

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The items that a response after this one continues."""
        return [*self.input_items, *self.response["output"]]


class ResponseStore:
    """At most max_responses of at most max_bytes together."""

    def __init__(
        self, max_responses: int, max_bytes: int = _MAX_BYTES, id_prefix: str = "resp_"
    ) -> None:
        """id_prefix: what the ids of its responses begin with; of several stores behind one
        address, each has its own."""
        self.id_prefix = id_prefix
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._n_bytes = 0

    def add(self, response: dict[str, Any], input_items: list[dict[str, Any]]) -> None:
        """Keep a finished response, unless it alone is larger than the store."""
        n_bytes = len(orjson.dumps(response)) + len(orjson.dumps(input_items))
        if n_bytes > self._max_bytes:
            return
        with self._lock:
            self._responses[response["id"]] = StoredResponse(response, input_items, n_bytes)
            self._n_bytes += n_bytes
            while len(self._responses) > self._max_responses or self._n_bytes > self._max_bytes:
                _, evicted = self._responses.popitem(last=False)
                self._n_bytes -= evicted.n_bytes

    def get(self, response_id: str, param: str | None = None) -> StoredResponse:
        """Raises a 404 for one that is not here. param: the field that named it."""
        with self._lock:
            stored = self._responses.get(response_id)
            if stored is None:
                raise _not_found(response_id, param)
            self._responses.move_to_end(response_id)
            return stored

    def delete(self, response_id: str) -> None:
        """Raises a 404 for one that is not here."""
        with self._lock:
            stored = self._responses.pop(response_id, None)
            if stored is None:
                raise _not_found(response_id, None)
            self._n_bytes -= stored.n_bytes


def _not_found(response_id: str, param: str | None) -> ApiError:
    return ApiError(
        404,
        f"response {response_id[:64]!r} is not stored here: it was made with store false, was "
        "deleted, or had to make room for newer ones (--max-stored-responses)",
        param=param,
        code="response_not_found",
    )
