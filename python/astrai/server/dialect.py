"""`ChatDialect`: how one model's chats are written and its answers read. Made by `TextLink`."""

from __future__ import annotations

import hashlib
import json
import secrets
import string
from collections import Counter
from collections.abc import Mapping
from typing import Any

from astrai.server.answer import Answer
from astrai.server.errors import bad_request
from astrai.server.structured_output import AskedGrammar, grammar_refusal
from astrai.server.tool_choice import ToolChoice
from astrai.structured import Grammar, GrammarError, check_schema, grammar_rule, schema_rule
from astrai.text import ChatTemplate, Tokenizer
from astrai.text.answer import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    AnswerReading,
    AnswerSplitter,
    detect_reasoning_format,
    detect_tool_format,
)
from astrai.text.answer.call_body import Tools
from astrai.text.answer.call_grammar import GrammarTerms, UnenforceableError, call_grammar
from astrai.text.tool_prompt import calls_as_text, one_call_a_turn, with_instruction

_TAIL_IDS = 32  # of a prompt: more than any tag that opens reasoning, and the white space behind it
MAX_SCHEMA_DEPTH = 64  # levels of the parameters of a tool whose call is forced
_ID_LETTERS = string.ascii_letters + string.digits


class ChatDialect:
    """The formats of one model's tool calls and reasoning, and what its template cannot express."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        tool_parser: str,
        reasoning_parser: str,
        faults_seen: Counter[str],
    ) -> None:
        """tool_parser, reasoning_parser: "auto", "none", or the name of a format. faults_seen:
        counts the calls that are returned as text, by reason."""
        self._tokenizer = tokenizer
        self._traits = template.traits
        sources = list(template.sources.values())
        self.tool_format = (
            detect_tool_format(sources, reads_tools=self._traits.reads_tools)
            if tool_parser == "auto"
            else TOOL_FORMATS.get(tool_parser)
        )
        self.reasoning_format = (
            detect_reasoning_format(sources)
            if reasoning_parser == "auto"
            else REASONING_FORMATS.get(reasoning_parser)
        )
        self._faults_seen = faults_seen

    def conversation(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Messages and tools in the form that the template can express."""
        if not self._traits.reads_calls:
            messages = calls_as_text(messages)
        elif self.tool_format is not None and self.tool_format.call_id_length is not None:
            messages = [_with_ids(m, self.tool_format.call_id_length) for m in messages]
        if not self._traits.takes_parallel_calls:
            messages = one_call_a_turn(messages)
        if not tools or self._traits.reads_tools:
            return messages, tools
        if self.tool_format is not None and self.tool_format.name == "hermes":
            messages = with_instruction(messages, tools, self._traits.reads_system)
        return messages, None

    def reading(
        self, prompt_ids: list[int], tools: list[dict[str, Any]] | None, first_call_only: bool
    ) -> AnswerReading | None:
        """How to read the answer to a prompt; None where it is text and nothing else."""
        tool_format = self.tool_format if tools else None
        reasoning = self.reasoning_format
        if tool_format is None and reasoning is None:
            return None
        is_reasoning = False
        if reasoning is not None:
            tail = self._tokenizer.decode(prompt_ids[-_TAIL_IDS:], skip_special_tokens=False)
            is_reasoning = tail.rstrip().endswith(reasoning.open)
        functions = [tool["function"] for tool in tools or ()]
        return AnswerReading(
            tool_format=tool_format,
            tools={f["name"]: f.get("parameters") or {} for f in functions},
            reasoning=reasoning,
            is_reasoning=is_reasoning,
            first_call_only=first_call_only,
        )

    def plan(
        self,
        prompt_ids: list[int],
        tools: list[dict[str, Any]] | None,
        choice: ToolChoice,
        first_call_only: bool,
        asked: AskedGrammar | None,
    ) -> tuple[AnswerReading | None, AskedGrammar | None]:
        """How to read the answer to a prompt, and the grammar that it has to follow. The grammar
        that the request asks for is for text: a forced call goes before it, and where tools are
        offered the answer is calls or such a text. Raises a 400."""
        several = choice.name is None and not first_call_only
        if choice.is_forced:
            reading = self.reading(prompt_ids, tools, first_call_only)
            if reading is None or reading.tool_format is None:
                raise bad_request(
                    "this server reads no tool calls (--tool-parser none), so it cannot force one",
                    param="tool_choice",
                    code="unsupported_value",
                )
            forced = {key: s for key, s in reading.tools.items() if choice.name in (None, key)}
            _check_schemas(forced)
            return reading, (self._calls(reading, forced, several), "tools")
        if asked is None:
            return self.reading(prompt_ids, tools, first_call_only), None
        if not tools or self.tool_format is None:
            return None, asked
        try:
            text = grammar_rule(asked[0], MAX_SCHEMA_DEPTH)
        except GrammarError as error:
            raise grammar_refusal(error, asked[1]) from None
        if text is None:
            return None, asked
        reading = self.reading(prompt_ids, tools, first_call_only)
        assert reading is not None
        offered = {key: _schema_or_any(schema) for key, schema in reading.tools.items()}
        return reading, (self._calls(reading, offered, several, text), asked[1])

    def _calls(
        self,
        reading: AnswerReading,
        tools: Tools,
        several: bool,
        text: str | None = None,
    ) -> Grammar:
        """The grammar of calls of `tools` and nothing else, but for `text` in their place."""
        assert reading.tool_format is not None
        close = reading.reasoning.close if reading.reasoning and reading.is_reasoning else None
        specials = {
            text: self._tokenizer.token_id(text) for text in self._tokenizer.special_strings
        }
        terms = GrammarTerms(
            schema_rule,
            lambda text: f"<[{specials[text]}]>" if text in specials else json.dumps(text),
            lambda text: text in specials,
        )
        try:
            source = call_grammar(
                reading.tool_format.name,
                tools,
                terms,
                several=several,
                reasoning_close=close,
                text=text,
            )
        except UnenforceableError as error:
            raise grammar_refusal(error, "tools") from None
        return Grammar.lark(source)

    def new_answer(self, reading: AnswerReading | None, id_prefix: str) -> Answer:
        """An empty answer. id_prefix: how the protocol begins a call's id."""
        if reading is None:
            return Answer()
        length = reading.tool_format.call_id_length if reading.tool_format is not None else None

        def new_call_id() -> str:
            if length is not None:
                return "".join(secrets.choice(_ID_LETTERS) for _ in range(length))
            return f"{id_prefix}{secrets.token_hex(12)}"

        return Answer(AnswerSplitter(reading), new_call_id, self._faults_seen)

    def shown_token_ids(self, reading: AnswerReading | None) -> tuple[int, ...]:
        """Special tokens whose text the reading needs to see."""
        if reading is None:
            return ()
        spellings: tuple[str, ...] = ()
        if reading.tool_format is not None:
            spellings += reading.tool_format.special_markers
        if reading.reasoning is not None:
            spellings += (reading.reasoning.open, reading.reasoning.close)
        specials = set(self._tokenizer.special_strings)
        ids = (self._tokenizer.token_id(text) for text in spellings if text in specials)
        return tuple(token_id for token_id in ids if token_id is not None)


def _check_schemas(tools: Tools) -> None:
    """Raise a 400 for parameters that cannot be enforced."""
    try:
        for schema in tools.values():
            check_schema(schema, MAX_SCHEMA_DEPTH)
    except GrammarError as error:
        raise grammar_refusal(error, "tools") from None


def _schema_or_any(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a tool that is offered; any object where they cannot be enforced."""
    try:
        check_schema(schema, MAX_SCHEMA_DEPTH)
    except GrammarError:
        return {"type": "object", "additionalProperties": True}
    return schema


def _with_ids(message: dict[str, Any], length: int) -> dict[str, Any]:
    """The message with ids of calls that the template takes. Ids that came from elsewhere get a
    digest in their place, the same one in the call and in its result."""
    changed = dict(message)
    if "tool_call_id" in message:
        changed["tool_call_id"] = _fitting_id(message["tool_call_id"], length)
    if message.get("tool_calls"):
        calls = message["tool_calls"]
        changed["tool_calls"] = [{**c, "id": _fitting_id(c["id"], length)} for c in calls]
    return changed


def _fitting_id(call_id: str, length: int) -> str:
    if len(call_id) == length and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:length]
