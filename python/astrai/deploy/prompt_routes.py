"""The route of a request, from its path and body: the pages of its prompt, the store it needs.

Prompts are made by the protocols' own builders, so they are token for token what the engine will
compute. A body that a builder refuses has no pages: the engine's server says what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from astrai.deploy.forwarded import Route
from astrai.deploy.prefix_affinity import page_keys
from astrai.server.anthropic import AnthropicResponseBuilder
from astrai.server.anthropic_models import MessagesRequest
from astrai.server.body import parse_model
from astrai.server.completions import CompletionResponseBuilder
from astrai.server.completions_models import CompletionRequest
from astrai.server.errors import ApiError
from astrai.server.openai_chat import OpenAIResponseBuilder
from astrai.server.openai_models import ChatCompletionRequest
from astrai.server.protocol import ResponseBuilder
from astrai.server.response_store import ResponseStore
from astrai.server.responses import ResponsesBuilder
from astrai.server.responses_models import InputFields, ResponsesRequest
from astrai.server.text_link import TextLink

__all__ = ["PromptRoutes", "response_id_prefix"]

_RESPONSES = "/v1/responses"
_PROTOCOLS: dict[str, tuple[type[BaseModel], Callable[[], ResponseBuilder[Any]]]] = {
    "/v1/chat/completions": (ChatCompletionRequest, OpenAIResponseBuilder),
    "/v1/completions": (CompletionRequest, CompletionResponseBuilder),
    "/v1/messages": (MessagesRequest, AnthropicResponseBuilder),
    # What an earlier response holds is known to the engine that stored it alone.
    _RESPONSES: (ResponsesRequest, lambda: ResponsesBuilder(ResponseStore(0))),
}
_RESPONSE_ID = re.compile(r"resp_([A-Za-z0-9]+)_[0-9a-f]+")


def response_id_prefix(replica: str) -> str:
    """What the ids of the responses begin with that this replica stores."""
    return f"resp_{replica}_"


class PromptRoutes:
    """Routes of requests to engines that all serve one model with the same settings."""

    def __init__(self, text: TextLink) -> None:
        self._text = text
        settings = text.settings
        # Rows of a contiguous pool and pages of one token are never shared.
        self._has_prefixes = settings.kv_mode == "paged" and settings.page_size > 1

    def of(self, path: str, body: bytes) -> Route:
        """Blocks for as long as the prompt takes to be tokenised."""
        if path.startswith(_RESPONSES + "/"):
            response_id = path.removeprefix(_RESPONSES + "/").partition("/")[0]
            if response_id != "input_tokens":
                return Route(replica=_storing(response_id))
        try:
            if path.startswith(_RESPONSES):
                previous = parse_model(body, InputFields).previous_response_id
                if previous is not None:
                    return Route(replica=_storing(previous))
            if self._has_prefixes and path in _PROTOCOLS:
                return Route(self._page_keys(path, body))
        except ApiError:
            pass
        return Route()

    def _page_keys(self, path: str, body: bytes) -> list[int]:
        model, new_builder = _PROTOCOLS[path]
        prompts, _, _ = new_builder().prepare(parse_model(body, model), self._text)
        return page_keys(prompts[0], self._text.settings.page_size)


def _storing(response_id: str) -> str | None:
    """The replica that stores a response, if the id is one that a replica gives."""
    found = _RESPONSE_ID.fullmatch(response_id)
    return found[1] if found else None
