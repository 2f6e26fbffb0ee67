"""A model's text as the handlers use it: conversations to ids, ids to bytes, and their limits.

Needs no engine, so a process that only looks at prompts can have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from astrai.server.dialect import ChatDialect
from astrai.server.errors import bad_request
from astrai.server.settings import ServerSettings
from astrai.text import ChatTemplate, TemplateError, Tokenizer, encode_chat


class TextLink:
    """One model's tokenizer and chat template behind the server's limits. `encode_*` block."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        vocab_size: int,
        max_seq_len: int,
        settings: ServerSettings,
    ) -> None:
        """tokenizer: None for a model that serves token ids only."""
        self.settings = settings
        self.max_seq_len = max_seq_len
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._token_bytes: list[bytes] | None = None
        self._call_faults: Counter[str] = Counter()
        flags = tokenizer.special_flags() if tokenizer is not None else b""
        self._special_ids = frozenset(i for i, is_special in enumerate(flags) if is_special)

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises a 400 for a model folder without tokenizer files: it serves token ids only."""
        if self._tokenizer is None:
            raise bad_request(
                "this model has no tokenizer and serves token ids only: send token ids as the "
                "prompt of /v1/completions",
                code="no_tokenizer",
            )
        return self._tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        if self._chat_template is None:
            raise bad_request(
                "this model has no chat template: use /v1/completions", code="no_chat_template"
            )
        return self._chat_template

    def encode_text(
        self, text: str, add_special_tokens: bool = False, parse_special: bool = True
    ) -> list[int]:
        self._refuse_hopeless(len(text), "prompt")
        return self.tokenizer.encode(text, add_special_tokens, parse_special)

    @cached_property
    def dialect(self) -> ChatDialect:
        """How this model's chats are written. Blocks at the first use; raises as encode_chat."""
        return ChatDialect(
            self.chat_template,
            self.tokenizer,
            self.settings.tool_parser,
            self.settings.reasoning_parser,
            self._call_faults,
        )

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation. variables: further ones for the template.

        Raises a 400 with the template's message."""
        tokenizer, template = self.tokenizer, self.chat_template
        self._refuse_hopeless(sum(len(message["content"]) for message in messages), "messages")
        messages, tools = self.dialect.conversation(messages, tools)
        try:
            return encode_chat(tokenizer, template, messages, tools=tools, **(variables or {}))
        except TemplateError as error:
            raise bad_request(
                f"the model's chat template refuses these messages: {error}",
                param="messages",
                code="template_error",
            ) from None
        except RecursionError:
            raise bad_request(
                "the messages are nested too deeply for the model's chat template",
                param="messages",
                code="template_error",
            ) from None

    def token_bytes(self) -> list[bytes]:
        """The bytes of each token id; empty for ids without text and without a tokenizer."""
        if self._token_bytes is None:
            known = self._tokenizer.token_bytes() if self._tokenizer is not None else []
            self._token_bytes = known + [b""] * (self.vocab_size - len(known))
        return self._token_bytes

    def spelled_bytes(self, token_id: int, skip_special: bool) -> bytes:
        """What a token adds to the text: nothing where special tokens are skipped."""
        return (
            b"" if skip_special and token_id in self._special_ids else self.token_bytes()[token_id]
        )

    def check_prompt(self, prompt_ids: list[int], param: str) -> None:
        """Refuse prompts that leave no room for one new token, or hold ids the model lacks.

        param: the field of the request that the prompt came from.
        """
        if not prompt_ids:
            raise bad_request("the prompt is empty", param=param, code="empty_prompt")
        self._refuse_longer_than(len(prompt_ids), self.prompt_limit(), param)
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.vocab_size:
            raise bad_request(
                f"the prompt holds a token id outside 0 to {self.vocab_size - 1}",
                param=param,
                code="invalid_token_id",
            )

    def check_count(self, n_generations: int) -> None:
        """Refuse a request of more generations than may be open at once: it can never be queued."""
        limit = self.settings.max_batch_size + self.settings.max_queue
        if n_generations > limit:
            raise bad_request(
                f"the request asks for {n_generations} generations; this server holds at most "
                f"{limit} at once",
                param="n",
            )

    def prompt_limit(self) -> int:
        """Tokens that a prompt may have."""
        limit = self.max_seq_len - 1  # one position is left for the answer
        if self.settings.max_prompt_tokens is not None:
            limit = min(limit, self.settings.max_prompt_tokens)
        return limit

    def _refuse_longer_than(
        self, n_tokens: int, limit: int, param: str, at_least: str = ""
    ) -> None:
        if n_tokens > limit:
            raise bad_request(
                f"the prompt has {at_least}{n_tokens} tokens; at most {limit} fit "
                f"(the context is {self.max_seq_len} tokens)",
                param=param,
                code="context_length_exceeded",
            )

    def _refuse_hopeless(self, n_chars: int, param: str) -> None:
        """Refuse a text that is too long however it is tokenised, before the work of doing so."""
        if self._longest_piece:
            n_tokens = n_chars // self._longest_piece
            self._refuse_longer_than(n_tokens, self.prompt_limit(), param, "more than ")

    @cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self.token_bytes()), default=0)
