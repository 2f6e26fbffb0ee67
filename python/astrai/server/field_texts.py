"""What each field of a request and of an answer means, in one line: /openapi.json and the HTTP
reference show it. "Schema.field" is that schema's own; a bare name holds wherever no own one is.
A test sees to it that every field has a text and every text a field."""

from __future__ import annotations

from typing import Any

FIELD_TEXTS = {
    # what is asked
    "model": "Any name; the answer repeats it.",
    "messages": "The conversation, oldest first.",
    "system": "The system prompt: a text, or text blocks that are joined.",
    "prompt": "The raw prompt; no chat template is used.",
    "CompletionRequest.prompt": "A text, token ids, or a list of either, each answered apart.",
    "InputFields.prompt": "Refused with 400: stored prompts are OpenAI's.",
    "ResponsesRequest.prompt": "Refused with 400: stored prompts are OpenAI's.",
    "Text.prompt": "The text of the tokens.",
    "input": "The request as a user's text, or as items.",
    "instructions": "A system prompt of this response alone; later ones do not inherit it.",
    "previous_response_id": "A stored response that this one continues.",
    "conversation": "Refused with 400: use `previous_response_id`.",
    "truncation": 'What a too long conversation gets: `"auto"` drops its oldest turns, '
    '`"disabled"` a 400.',
    "suffix": "Refused with 400 unless empty.",
    "add_special_tokens": "Put the tokenizer's own first and last tokens around the prompt.",
    "parse_special": "Read special tokens' names in the prompt as those tokens.",
    "echo": "Begin the text with the prompt.",
    # how tokens are drawn
    "temperature": "0 takes the likeliest token; larger values even out the probabilities.",
    "top_p": "Draw among the likeliest tokens that together have this probability.",
    "top_k": "Draw among this many of the likeliest tokens; 0 and -1 are all.",
    "min_p": "Leave out tokens less likely than this share of the likeliest one.",
    "presence_penalty": "Taken from the logit of each token that the answer already has.",
    "frequency_penalty": "Taken from a token's logit each time that the answer has it.",
    "repetition_penalty": "Divides positive logits, and multiplies negative ones, of tokens in "
    "prompt or answer; 1 is off.",
    "logit_bias": "Token ids, and what is added to their logits: -100 to 100.",
    "seed": "The same seed draws the same tokens; choice i draws with seed + i.",
    "n": "Choices of each prompt.",
    "best_of": "Refused with 400 unless it is n.",
    # where an answer ends
    "max_tokens": "The most tokens of an answer, reasoning included.",
    "max_completion_tokens": "Stands above `max_tokens`.",
    "max_output_tokens": "The most tokens of the answer; absent: what the context leaves.",
    "min_tokens": "No end token before this many tokens.",
    "stop": "One or several texts at which the answer ends; they are left out of it.",
    "stop_sequences": "Texts at which the answer ends; they are left out of it.",
    "stop_token_ids": "More token ids at which the answer ends.",
    "ignore_eos": "Go on behind the model's own end tokens.",
    "deadline_ms": "Milliseconds from the request's arrival until its answer is of no use: then "
    "it ends with 408.",
    # how an answer is told
    "stream": "Send events as tokens come.",
    "stream_options": "Which usage event a stream ends with.",
    "include_usage": "Absent: counts at top level beside an empty choice; true: OpenAI's usage "
    "chunk; false: none.",
    "skip_special_tokens": "Leave special tokens out of the text.",
    "return_token_ids": "Put `token_ids` and `prompt_token_ids` into each choice.",
    "logprobs": "Tell each token's log probability.",
    "CompletionRequest.logprobs": "Tell each token's log probability and this many alternatives.",
    "top_logprobs": "Alternatives to tell beside each token.",
    "include": 'Only `"message.output_text.logprobs"` is known: tell log probabilities.',
    "store": "Keep the response for later ones to continue.",
    "user": "Written to the log.",
    "metadata": "Returned as sent.",
    "MessagesRequest.metadata": "Has no effect.",
    "background": "Refused with 400 when true.",
    "max_tool_calls": "Has no effect: the server runs no tools.",
    "safety_identifier": "Has no effect.",
    "prompt_cache_key": "Has no effect: equal prefixes are found without it.",
    # structured output
    "response_format": "The form of the answer's text, enforced token by token.",
    "guided_json": "A JSON schema that the text fits.",
    "guided_regex": "A regular expression that the whole text matches.",
    "guided_grammar": "A grammar in Lark's notation that the text follows.",
    "guided_choice": "The texts of which the answer is one.",
    "structured_outputs": "The same four as one object.",
    "output_config": "The form of the answer's text.",
    "output_format": "The form of the answer's text; the older name of `output_config.format`.",
    "OutputConfig.format": "A JSON schema that the text fits.",
    "TextOptions.format": "The form of the answer's text, enforced token by token.",
    "verbosity": "Has no effect.",
    "json_schema": "The schema; needed by that type.",
    "schema": "The JSON schema itself.",
    "JsonSchemaFormat.name": "A name for the schema; has no effect.",
    "TextFormat.name": "A name for the schema; has no effect.",
    "JsonSchemaFormat.description": "Has no effect.",
    "TextFormat.description": "Has no effect.",
    "strict": "Has no effect: schemas are always enforced.",
    "StructuredOutputs.json": "A JSON schema that the text fits.",
    "StructuredOutputs.regex": "A regular expression that the whole text matches.",
    "StructuredOutputs.choice": "The texts of which the answer is one.",
    "StructuredOutputs.grammar": "A grammar in Lark's notation that the text follows.",
    "json_object": "Any JSON object.",
    "structural_tag": "Refused with 400.",
    # tools and reasoning
    "tools": "The functions that the model may call.",
    "FunctionChoice.tools": "The only tools that may be called.",
    "tool_choice": "Whether tools may, must or must not be called, or the one that must be.",
    "parallel_tool_calls": "False keeps the first call and drops the others.",
    "disable_parallel_tool_use": "Keep the first call and drop the others.",
    "reasoning_effort": 'A variable of the chat template; `"none"` switches reasoning off where it '
    "can.",
    "reasoning": "How much the model reasons first.",
    "thinking": "Whether the model reasons first, where its chat template has a switch.",
    "ContentBlock.thinking": "The text of a thinking block.",
    "effort": 'A variable of the chat template; `"none"` switches reasoning off where it can.',
    "ReasoningOptions.summary": "Has no effect.",
    "chat_template_kwargs": "More variables of the chat template.",
    "function": "The function.",
    "name": "Its name.",
    "ChatMessage.name": "Who speaks; for the chat templates that show it.",
    "description": "What it does, for the model to read.",
    "parameters": "A JSON schema of its arguments.",
    "input_schema": "A JSON schema of its arguments.",
    "arguments": "Its arguments, as JSON text.",
    "mode": "Whether one of them must be called.",
    # parts of a conversation
    "type": "What this is; the values that are accepted stand beside it.",
    "role": "Who speaks.",
    "content": "A text, or parts that are joined.",
    "text": "The text.",
    "ResponsesRequest.text": "The form of the answer's text.",
    "InputFields.text": "The form of the answer's text.",
    "refusal": "The text of a refusal, read as text.",
    "tool_calls": "Calls that this message made.",
    "tool_call_id": "The call that this message answers.",
    "tool_use_id": "The call that this block answers.",
    "call_id": "The call that this item makes or answers.",
    "id": "Its id.",
    "ContentBlock.input": "The arguments of a call.",
    "is_error": "Whether the tool failed; the model is told so.",
    "output": "What the tool returned.",
    "summary": "Of an earlier reasoning item; not read.",
    "reasoning_content": "The reasoning of an earlier answer, for templates that show it.",
    "tokens": "Token ids.",
    # what is answered
    "object": "What this is.",
    "created": "When it was made, in Unix seconds.",
    "created_at": "When it was made, in Unix seconds.",
    "choices": "The answers, n of each prompt.",
    "usage": "Tokens of prompt and answer.",
    "status": "Whether the answer came to its own end.",
    "Health.status": 'Whether the engine runs; `"error"` comes with status 503.',
    "Response.output": "The items of the answer: reasoning, messages, calls.",
    "Message.content": "The blocks of the answer: text, thinking, calls.",
    "stop_reason": "Why the answer ended.",
    "stop_sequence": "The stop sequence that was met.",
    "deleted": "Always true.",
    "data": "The list.",
    "first_id": "Id of the first item of this page.",
    "last_id": "Id of the last one, `after` of the next page.",
    "has_more": "Whether there is a next page.",
    "input_tokens": "Tokens of the prompt.",
    "owned_by": 'Always `"astrai"`.',
    "count": "How many tokens they are.",
    "max_model_len": "Tokens of a prompt and its answer, at most.",
    "model_loaded": "Whether there is a model.",
    "ready": "Whether new requests are taken.",
    "total_tasks": "Requests since the start.",
    "total_tokens": "Tokens generated since the start.",
    "active_tasks": "Requests that run.",
    "waiting_queue": "Requests that wait.",
    "detail": "What was wrong: a sentence, or for 422 a list with a place for each fault.",
    "error": "The same in the protocol's own envelope.",
}


def with_texts(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of that name with a description for each of its properties. Raises KeyError for
    a property without a text."""
    if "properties" not in schema:
        return schema
    described = {
        field: {**declared, "description": FIELD_TEXTS.get(f"{name}.{field}") or FIELD_TEXTS[field]}
        for field, declared in schema["properties"].items()
    }
    return {**schema, "properties": described}
