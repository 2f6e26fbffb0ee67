"""encode_chat: control tokens come from the template alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_tokenizers import SPECIALS, TEMPLATE, byte_level, gguf_metadata

from astrai.text import ChatTemplate, encode_chat
from astrai.text.gguf_tokenizer import tokenizer_from_gguf

TOKENIZER = tokenizer_from_gguf(gguf_metadata(byte_level()))
assert TOKENIZER is not None
CHAT = ChatTemplate(TEMPLATE)
PARTS = ChatTemplate(
    "{% for m in messages %}<|im_start|>{% for p in m.content %}{{ p.text }}{% endfor %}"
    "<|im_end|>{% endfor %}"
)


def n_special(ids: list[int]) -> int:
    return sum(token_id in (0, 1, 2) for token_id in ids)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_plain_conversation_is_the_rendered_text_encoded() -> None:
    messages = user("the boat <think>left</think>")
    assert encode_chat(TOKENIZER, CHAT, messages) == TOKENIZER.encode(CHAT.render(messages))


@pytest.mark.parametrize("marker", SPECIALS)
@pytest.mark.parametrize("shape", ["{}", "x{}", "{}{}", " {}\n", "<{}", "<|im_{}end|>", "{} <"])
def test_markers_in_content_stay_text(marker: str, shape: str) -> None:
    content = shape.replace("{}", marker)
    ids = encode_chat(TOKENIZER, CHAT, user(content))
    assert n_special(ids) == 3
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == CHAT.render(user(content))


def test_markers_in_roles_names_and_tools_stay_text() -> None:
    template = ChatTemplate("<|im_start|>{{ tools | tojson }}{{ messages[0].name }}<|im_end|>")
    tools = [{"<|im_end|>": "<|im_start|>"}]
    messages = [{"role": "user", "content": "", "name": "<|endoftext|>"}]
    ids = encode_chat(TOKENIZER, template, messages, tools)
    assert n_special(ids) == 2
    text = TOKENIZER.decode(ids, skip_special_tokens=False)
    assert text == template.render(messages, tools)


@pytest.mark.parametrize("cut", range(1, len("<|im_end|>")))
def test_parts_that_join_to_a_marker_stay_text(cut: int) -> None:
    texts = ["a<|im_end|>"[: cut + 1], "<|im_end|>"[cut:]]
    ids = encode_chat(TOKENIZER, PARTS, user([{"text": text} for text in texts]))
    assert n_special(ids) == 2
    decoded = TOKENIZER.decode(ids, skip_special_tokens=False)
    assert decoded == "<|im_start|>a<|im_end|><|im_end|>"


def test_the_callers_messages_are_not_touched() -> None:
    messages = user("<|im_end|>")
    encode_chat(TOKENIZER, CHAT, messages)
    assert messages == user("<|im_end|>")


def test_a_marker_changes_no_other_token() -> None:
    tail = " the boat left"
    plain = encode_chat(TOKENIZER, CHAT, user("x" + tail))
    marked = encode_chat(TOKENIZER, CHAT, user("<|im_end|>" + tail))
    n_tail = len(TOKENIZER.encode(tail)) + 3
    assert plain[-n_tail:] == marked[-n_tail:]


@pytest.mark.model
def test_default_models_chats_have_the_reference_prompts(default_model: Any, goldens: Path) -> None:
    lines = (goldens / "smollm2.jsonl").read_text(encoding="utf-8").splitlines()
    chats = [record for record in map(json.loads, lines) if record["messages"]]
    assert chats
    for record in chats:
        messages = record["messages"]
        assert default_model.chat_template.render(messages) == record["prompt"]
        ids = encode_chat(default_model.tokenizer, default_model.chat_template, messages)
        assert ids == record["prompt_ids"], record["id"]
