"""A server with OpenAI's chat completions, over the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from astrai.cli.chat.source import ChatError, ChatSource, Messages, Piece, Usage

__all__ = ["RemoteSource"]

_CONNECT_TIMEOUT_S = 10.0


class RemoteSource(ChatSource):
    """One connection an answer; closing it is what tells a server to stop generating."""

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        """url: the server's, with or without /v1. Raises ChatError where nobody answers."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ChatError(f"--url {url} is no http or https address")
        self._parts = parts
        self._base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.name = model if model is not None else self._first_model()
        self.usage = Usage()

    def reply(self, messages: Messages, sampling: dict[str, float | int]) -> Iterator[Piece]:
        body = {
            "model": self.name,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
        connection = self._connect()
        try:
            response = self._send(connection, "POST", "/chat/completions", body)
            yield from self._pieces(response)
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"the connection broke: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Nothing is held: each answer closes its own connection."""

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[Piece]:
        usage = Usage()
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.usage = usage
                return
            chunk = json.loads(data)
            if "error" in chunk:
                raise ChatError(_error_text(chunk) or "the server ended the answer with an error")
            told = chunk.get("usage")
            if told:
                details = told.get("prompt_tokens_details") or {}
                usage.n_prompt = told.get("prompt_tokens")
                usage.n_cached = details.get("cached_tokens")
                usage.n_output = told.get("completion_tokens")
            for choice in chunk.get("choices", ()):
                delta = choice.get("delta") or {}
                if reasoning := delta.get("reasoning_content"):
                    yield Piece(reasoning, is_reasoning=True)
                if text := delta.get("content"):
                    yield Piece(text)
        raise ChatError("the answer broke off; the server closed the connection")

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            models = json.loads(self._send(connection, "GET", "/models", None).read())
            name: str = models["data"][0]["id"]
            return name
        except (KeyError, IndexError, TypeError, ValueError):
            raise ChatError("the server names no model; give one by --served-model") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        https = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        assert self._parts.hostname is not None  # checked by __init__
        return kind(self._parts.hostname, self._parts.port, timeout=_CONNECT_TIMEOUT_S)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        try:
            connection.connect()
        except OSError as error:
            raise ChatError(f"no server answers at {self._parts.netloc}: {error}") from error
        connection.sock.settimeout(None)  # a long prompt may take minutes
        text = None if body is None else json.dumps(body)
        connection.request(method, self._base + path, text, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            told = response.read()
            try:
                reason = _error_text(json.loads(told))
            except ValueError:
                reason = None
            raise ChatError(f"{response.status}: {reason or response.reason}")
        return response


def _error_text(body: Any) -> str | None:
    """The message of an error body of OpenAI's or Anthropic's shape."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None
