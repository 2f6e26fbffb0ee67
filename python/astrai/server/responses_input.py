"""Items of /v1/responses as they are stored, and the chat request that asks the same.

Blocks and raises ApiError; runs on a text thread.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from astrai.server.errors import ApiError, bad_request
from astrai.server.openai_common import check_depth, new_id
from astrai.server.openai_models import ChatCompletionRequest
from astrai.server.responses_models import (
    InputFields,
    InputItem,
    InputPart,
    ResponsesRequest,
    TextFormat,
)

LOGPROBS = "message.output_text.logprobs"
# What else may be asked to be included. None of it is there: it belongs to tools that OpenAI runs.
_INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
# Names of a chat completion's fields where this protocol has others.
_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
}
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def own_name(param: str | None) -> str | None:
    """This protocol's name for a field of the chat completion that asks the same."""
    return _NAMES.get(param or "", param)


def stored_items(request: InputFields) -> list[dict[str, Any]]:
    """The request's own input in the form that input_items shows and messages are made of."""
    if isinstance(request.input, str):
        return [_message("user", request.input)] if request.input else []
    return [_stored_item(item) for item in request.input]


def check_supported(request: InputFields) -> None:
    """Refuse what the server cannot honour, by name."""
    for name in ("conversation", "prompt"):
        if getattr(request, name) is not None:
            raise _unsupported(name, f"{name} is not supported by this server", name)
    # Also of tools that are off and schemas that are not asked for: the response repeats them.
    check_depth([tool.parameters for tool in request.tools or ()], "the tools are", "tools")
    shape = request.text.format if request.text is not None else None
    if shape is not None:
        check_depth([shape.json_schema], "the schema is", "text.format")
    if isinstance(request, ResponsesRequest):
        if request.background:
            message = "background responses are not supported by this server; leave it false"
            raise _unsupported("background", message, "background")
        for name in request.include or ():
            if name not in _INCLUDABLE:
                known = ", ".join(sorted(_INCLUDABLE))
                raise bad_request(
                    f"include {name!r} is unknown; known are {known}", param="include"
                )


def chat_request(request: InputFields, items: list[dict[str, Any]]) -> ChatCompletionRequest:
    """The chat completion that asks for the same. items: the whole conversation."""
    messages = chat_messages(items)
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    if not messages:
        raise bad_request("input is empty; give a text or at least one item", param="input")
    tools = _chat_tools(request)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "tools": tools or None,
        "tool_choice": _chat_tool_choice(request),
        "parallel_tool_calls": request.parallel_tool_calls,
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
        "response_format": _response_format(request.text.format if request.text else None),
    }
    if isinstance(request, ResponsesRequest):
        body |= _sampling(request)
    try:
        return ChatCompletionRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = own_name(str(first["loc"][0]))
        raise bad_request(f"{param}: {first['msg']}", param=param) from None


def chat_messages(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of a conversation. What an assistant said, thought and called in a row is one."""
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None  # the assistant's message that is being put together
    for item in items:
        kind = item["type"]
        if kind == "function_call_output":
            output = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            messages.append(output)
        elif kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _joined(item["content"])})
        else:
            if turn is None:
                turn = {"role": "assistant", "content": ""}
                messages.append(turn)
            _extend_turn(turn, item)
            continue
        turn = None
    return messages


def _extend_turn(turn: dict[str, Any], item: dict[str, Any]) -> None:
    if item["type"] == "message":
        turn["content"] += _joined(item["content"])
    elif item["type"] == "reasoning":
        turn["reasoning_content"] = turn.get("reasoning_content", "") + _joined(item["content"])
    else:
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)


def _joined(parts: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in parts)


def _message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    part: dict[str, Any] = {"type": kind, "text": text}
    if role == "assistant":
        part["annotations"] = []
    return {
        "id": new_id("msg_"),
        "type": "message",
        "status": "completed",
        "role": role,
        "content": [part],
    }


def _stored_item(item: InputItem) -> dict[str, Any]:
    if item.type == "message":
        assert item.role is not None and item.content is not None  # the model's validator saw to it
        return _message(item.role, _text(item.content))
    if item.type == "function_call":
        return {
            "id": new_id("fc_"),
            "type": "function_call",
            "status": "completed",
            "call_id": item.call_id,
            "name": item.name,
            "arguments": item.arguments,
        }
    if item.type == "function_call_output":
        return {
            "id": new_id("fco_"),
            "type": "function_call_output",
            "status": "completed",
            "call_id": item.call_id,
            "output": _text(item.output or ""),
        }
    if item.type == "reasoning":
        part = {"type": "reasoning_text", "text": _text(item.content or "")}
        return {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": [part]}
    raise _unsupported(
        "input",
        f"an input item of type {item.type!r} is not supported by this server; supported are "
        "message, function_call, function_call_output, reasoning",
        "unsupported_item",
    )


def _text(content: str | list[InputPart]) -> str:
    """The text of parts; they are joined without anything between them."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part.type == "refusal":
            texts.append(part.refusal or "")
        elif part.type in _TEXT_PARTS:
            texts.append(part.text or "")
        else:
            raise bad_request(
                f"content part of type {part.type!r} is not supported: this model reads text only",
                param="input",
            )
    return "".join(texts)


def _chat_tools(request: InputFields) -> list[dict[str, Any]]:
    tools = []
    allowed = _allowed_names(request)
    for tool in request.tools or ():
        if tool.type != "function":
            raise _unsupported(
                "tools",
                f"a tool of type {tool.type!r} is not supported by this server, which runs none "
                "itself; use functions",
                "unsupported_tool",
            )
        function = tool.model_dump(exclude={"type"}, exclude_none=True)
        if allowed is None or tool.name in allowed:
            tools.append({"type": "function", "function": function})
    return tools


def _allowed_names(request: InputFields) -> set[str] | None:
    """Names of the only tools that may be called; None when all of them may."""
    choice = request.tool_choice
    if isinstance(choice, str) or choice.type != "allowed_tools":
        return None
    names = {tool.name for tool in choice.tools or ()}
    unknown = names - {tool.name for tool in request.tools or ()}
    if unknown:
        raise bad_request(
            f"tool_choice allows {min(unknown)[:64]!r}, which is not among the tools",
            param="tool_choice",
        )
    return names


def _chat_tool_choice(request: InputFields) -> Any:
    choice = request.tool_choice
    if isinstance(choice, str):
        return choice
    if choice.type == "allowed_tools":
        return choice.mode or "auto"
    return {"type": choice.type, "function": {"name": choice.name}}


def _response_format(wanted: TextFormat | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    schema = {
        "name": wanted.name or "response",
        "schema": wanted.json_schema,
        "strict": wanted.strict,
        "description": wanted.description,
    }
    return {
        "type": "json_schema",
        "json_schema": {key: value for key, value in schema.items() if value is not None},
    }


def _sampling(request: ResponsesRequest) -> dict[str, Any]:
    wants_logprobs = LOGPROBS in (request.include or ()) or bool(request.top_logprobs)
    fields = {
        name: getattr(request, name)
        for name in (
            *("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "seed", "stop", "stream", "user"),
        )
    }
    return {
        **fields,
        # Without a limit the answer may fill the context, which the engine clamps to.
        "max_tokens": request.max_output_tokens or 2**31,
        "logprobs": wants_logprobs,
        "top_logprobs": request.top_logprobs if wants_logprobs else None,
    }


def _unsupported(param: str, message: str, code: str) -> ApiError:
    return bad_request(message, param=param, code=code)
