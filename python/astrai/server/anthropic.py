"""POST /v1/messages: Anthropic's shapes and event sequence.

https://docs.anthropic.com/en/api/messages-streaming
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from astrai.engine import TokenEvent
from astrai.sampling import SamplingParams
from astrai.server.answer import Answer, AnswerBlock, call_faults
from astrai.server.anthropic_models import (
    CountTokensRequest,
    MessagesRequest,
    template_messages,
    template_tools,
)
from astrai.server.errors import ApiError, anthropic_error, bad_request
from astrai.server.openai_chat import check_tools
from astrai.server.openai_common import new_id, now, stop_strings
from astrai.server.openai_models import reasoning_switch
from astrai.server.protocol import Choice, ResponseBuilder, ResponseContext
from astrai.server.sse import DONE, TextFrame, named_frame
from astrai.server.structured_output import anthropic_grammar
from astrai.server.text_link import TextLink
from astrai.server.tool_choice import ToolChoice, anthropic_tool_choice
from astrai.text.answer import AnswerEvent, CallArguments, CallEnd, ReasoningPiece, TextPiece

# The unnamed [DONE] is the specification's; official clients skip events without a name.
_MESSAGE_STOP = named_frame({"type": "message_stop"}) + DONE


class AnthropicResponseBuilder(ResponseBuilder[MessagesRequest]):
    """Shapes of one message; made anew for each request."""

    def prepare(
        self, request: MessagesRequest, engine: TextLink
    ) -> tuple[list[list[int]], ResponseContext, tuple[str, ...]]:
        sampling = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=min(request.top_k, engine.vocab_size),
            repetition_penalty=request.repetition_penalty,
            max_tokens=min(request.max_tokens, engine.max_seq_len),
        )
        stops = stop_strings(request.stop_sequences, engine, "stop_sequences")
        prompt_ids, tools, choice = encode_messages(request, engine)
        asked_choice = request.tool_choice
        first_call_only = asked_choice is not None and asked_choice.disable_parallel_tool_use
        dialect = engine.dialect
        asked = anthropic_grammar(request.output_config, request.output_format)
        reading, grammar = dialect.plan(prompt_ids, tools, choice, first_call_only, asked)
        sampling = replace(sampling, shown_token_ids=dialect.shown_token_ids(reading))
        ctx = ResponseContext(
            new_id("msg_"),
            now(),
            request.model,
            request.stream,
            sampling,
            new_answer=partial(dialect.new_answer, reading, "toolu_"),
            grammar=grammar,
        )
        self._hides_thinking = request.thinking is not None and request.thinking.type == "disabled"
        self._blocks = _BlockFrames()
        return [prompt_ids], ctx, stops

    def format_stream_start(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        return named_frame({"type": "message_start", "message": _message(ctx, [], choices[0])})

    def format_chunk(self, ctx: ResponseContext, choice: Choice, event: TokenEvent) -> bytes:
        return b"".join(
            self._blocks.tell(event, block)
            for event, block in choice.answer.news
            if not (self._hides_thinking and block.kind == "reasoning")
        )

    def text_frame(self, ctx: ResponseContext, choice: Choice) -> TextFrame | None:
        blocks = choice.answer.blocks
        return self._blocks.text_frame(blocks[-1]) if blocks else None

    def format_stream_end(self, ctx: ResponseContext, choices: list[Choice]) -> bytes:
        choice = choices[0]
        delta = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop_string}
        usage = {"output_tokens": choice.n_output}
        end = {"type": "message_delta", "delta": delta, "usage": usage, **_faults(choice.answer)}
        return self._blocks.finish() + named_frame(end) + _MESSAGE_STOP

    def format_stream_error(self, error: ApiError) -> bytes:
        event = {"type": "error", "error": anthropic_error(error), "detail": error.message}
        return named_frame(event) + DONE

    def format_response(self, ctx: ResponseContext, choices: list[Choice]) -> dict[str, Any]:
        choice = choices[0]
        blocks = [
            block
            for block in choice.answer.blocks
            if not (self._hides_thinking and block.kind == "reasoning")
        ]
        content = [_content_block(block) for block in blocks or [AnswerBlock("text")]]
        return {**_message(ctx, content, choice), **_faults(choice.answer)}


class _ThinkingFrame(TextFrame):
    """The frame of a block of thinking, which signs what goes through it."""

    def __init__(self, example: bytes) -> None:
        super().__init__(example)
        self._digest = hashlib.sha256()

    def fill(self, text: str) -> bytes:
        self._digest.update(text.encode())
        return super().fill(text)

    def signature(self) -> str:
        """`_signature` of the whole thinking."""
        return self._digest.hexdigest()


class _BlockFrames:
    """The events of one streamed message's content blocks, in the order that clients expect."""

    def __init__(self) -> None:
        self._n_begun = 0
        self._open: AnswerBlock | None = None
        self._frame: TextFrame | None = None  # of more text of the open block

    def tell(self, event: AnswerEvent, block: AnswerBlock) -> bytes:
        """The frames of one event of `block`, which ends the block before it."""
        frames = b""
        if block is not self._open and not isinstance(event, CallEnd):
            frames = self._close() + self._begin(block)
        if isinstance(event, TextPiece | ReasoningPiece):
            if self._frame is None:
                self._frame = self._frame_of(block)
            return frames + self._frame.fill(event.text)
        if isinstance(event, CallArguments):
            return frames + self._delta({"type": "input_json_delta", "partial_json": event.text})
        if isinstance(event, CallEnd):
            return frames + self._close()
        return frames

    def text_frame(self, block: AnswerBlock) -> TextFrame | None:
        """The frame of more text of `block`; None unless it is the open one and has had some."""
        return self._frame if block is self._open else None

    def finish(self) -> bytes:
        """The end of the last block; a message without any has an empty text."""
        frames = b"" if self._n_begun else self._begin(AnswerBlock("text"))
        return frames + self._close()

    def _begin(self, block: AnswerBlock) -> bytes:
        self._open, self._frame = block, None
        self._n_begun += 1
        empty = replace(block, text="")
        start = {
            "type": "content_block_start",
            "index": self._n_begun - 1,
            "content_block": _content_block(empty),
        }
        return named_frame(start)

    def _close(self) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        frames = b""
        if isinstance(self._frame, _ThinkingFrame):
            signature = {"type": "signature_delta", "signature": self._frame.signature()}
            frames = self._delta(signature)
        return frames + named_frame({"type": "content_block_stop", "index": self._n_begun - 1})

    def _frame_of(self, block: AnswerBlock) -> TextFrame:
        if block.kind == "reasoning":
            thinking = {"type": "thinking_delta", "thinking": TextFrame.SLOT}
            return _ThinkingFrame(self._delta(thinking))
        return TextFrame(self._delta({"type": "text_delta", "text": TextFrame.SLOT}))

    def _delta(self, delta: dict[str, Any]) -> bytes:
        event = {"type": "content_block_delta", "index": self._n_begun - 1, "delta": delta}
        return named_frame(event)


def _content_block(block: AnswerBlock) -> dict[str, Any]:
    """A block as the API shapes it; without text as the beginning of its stream."""
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    if block.kind == "reasoning":
        signature = _signature(block.text) if block.text else ""
        return {"type": "thinking", "thinking": block.text, "signature": signature}
    # As the model wrote it: a number may be wider than what a JSON library takes.
    arguments = orjson.Fragment(block.text) if block.text else {}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments}


def _signature(thinking: str) -> str:
    """Clients send a block back with its signature and refuse one without; nothing checks it."""
    return hashlib.sha256(thinking.encode()).hexdigest()


def _faults(answer: Answer) -> dict[str, Any]:
    return {"tool_call_faults": call_faults(answer)} if answer.faults else {}


def encode_messages(
    request: CountTokensRequest, engine: TextLink
) -> tuple[list[int], list[dict[str, Any]] | None, ToolChoice]:
    """Prompt ids of a conversation with its system prompt and tools, the tools that may be called,
    and whether one has to be. Blocks; raises ApiError."""
    choice = ToolChoice()
    if request.tool_choice is not None:
        asked = request.tool_choice
        names = {tool.name for tool in request.tools or ()}
        choice = anthropic_tool_choice(asked.type, asked.name, names)
    tools = None if choice.is_off else template_tools(request.tools)
    if tools:
        check_tools(tools, engine.settings.max_tools_bytes)
    try:
        messages = template_messages(request)
    except ValueError as error:
        raise bad_request(str(error), param="messages") from None
    thinking = request.thinking
    variables = reasoning_switch(thinking.type != "disabled") if thinking is not None else None
    return engine.encode_chat(messages, tools, variables), tools, choice


def _message(ctx: ResponseContext, content: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
    return {
        "id": ctx.response_id,
        "type": "message",
        "role": "assistant",
        "model": ctx.model,
        "content": content,
        "stop_reason": _stop_reason(choice),
        "stop_sequence": choice.stop_string,
        "usage": {
            # Anthropic's input_tokens leave out what the prompt cache read.
            "input_tokens": choice.n_prompt - choice.reported_hit,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": choice.reported_hit,
            "output_tokens": choice.n_output,
        },
    }


def _stop_reason(choice: Choice) -> str | None:
    if choice.finish_reason is not None and choice.answer.calls:
        return "tool_use"
    if choice.stop_string is not None:
        return "stop_sequence"
    return {"stop": "end_turn", "length": "max_tokens", None: None}[choice.finish_reason]
