"""What is found out about a template, and the text that stands in for what it cannot express."""

from __future__ import annotations

from typing import Any

import pytest

from astrai.text import ChatTemplate, TemplateError
from astrai.text.answer import detect_reasoning_format, detect_tool_format
from astrai.text.template_traits import TemplateTraits
from astrai.text.tool_prompt import calls_as_text, one_call_a_turn, with_instruction

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
CALLS = (
    "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}ARGS{% endfor %}{% endfor %}"
)
OBJECT = CALLS.replace("ARGS", "{{ c.function.arguments | tojson }}")
TEXT = CALLS.replace("ARGS", "{{ '```' + c.function.arguments + '```' }}")
EITHER = CALLS.replace(
    "ARGS",
    "{% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}",
)
TAGGED = CALLS.replace(
    "ARGS", "{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}"
)
PRINTED = CALLS.replace("ARGS", "{{ c.function.arguments }}")
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role in ['system', 'tool'] %}{{ raise_exception('no') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": "Wait.",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "4"},
    {"role": "tool", "tool_call_id": "1", "content": "5"},
    {"role": "user", "content": "So?"},
]


@pytest.mark.parametrize(
    "source, traits",
    [
        (TURNS, TemplateTraits(True, False, False, False)),
        (NO_SYSTEM, TemplateTraits(False, False, False, False)),
        (OBJECT, TemplateTraits(True, True, True, False)),
        (EITHER, TemplateTraits(True, True, True, False)),
        (TAGGED, TemplateTraits(True, True, True, False)),
        (TEXT, TemplateTraits(True, True, True, True)),
        (PRINTED, TemplateTraits(True, True, True, True)),
    ],
)
def test_traits_are_those_of_the_source(source: str, traits: TemplateTraits) -> None:
    assert ChatTemplate(source).traits == traits


@pytest.mark.parametrize("source", [OBJECT, TEXT, EITHER, PRINTED])
@pytest.mark.parametrize("arguments", [{"x": "é"}, '{"x": "é"}'])
def test_arguments_are_rendered_as_json_whatever_form_they_come_in(
    source: str, arguments: Any
) -> None:
    function = {"name": "f", "arguments": arguments}
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}
    assert '{"x": "é"}' in ChatTemplate(source).render([turn], [TOOL])


def test_calls_become_text_that_a_strict_template_takes() -> None:
    turns = calls_as_text(HISTORY)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == (
        'Wait.\n<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
    )
    assert turns[2]["content"] == (
        "<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response>\nSo?"
    )
    with pytest.raises(TemplateError):
        ChatTemplate(NO_SYSTEM).render(HISTORY)
    assert "[user]<tool_response>" in ChatTemplate(NO_SYSTEM).render(turns)
    assert "tool_calls" in HISTORY[1], "the caller's messages are untouched"


def test_a_template_that_takes_one_call_a_turn_gets_one() -> None:
    single = OBJECT.replace(
        "{% for c",
        "{% if m.tool_calls|length > 1 %}{{ raise_exception('one') }}{% endif %}{% for c",
    )
    template = ChatTemplate(single)
    assert template.traits == TemplateTraits(True, True, True, False, takes_parallel_calls=False)
    calls = [
        {"id": number, "type": "function", "function": {"name": "f", "arguments": {"x": number}}}
        for number in "123"
    ]
    results = [{"role": "tool", "tool_call_id": n, "content": f"result {n}"} for n in "213"]
    user = {"role": "user", "content": "So?"}
    turns = [{"role": "assistant", "content": "Wait.", "tool_calls": calls}, *results, user]
    with pytest.raises(TemplateError, match="one"):
        template.render(turns)
    assert template.render(one_call_a_turn(turns)) == (
        '[assistant]Wait.f{"x": "1"}[tool]result 1[assistant]f{"x": "2"}[tool]result 2'
        '[assistant]f{"x": "3"}[tool]result 3[user]So?'
    )


def test_users_after_users_stay_apart_when_no_result_is_between_them() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert calls_as_text(turns) == turns


@pytest.mark.parametrize(
    "messages, reads_system, role, beginning, end",
    [
        ([{"role": "user", "content": "Hi"}], True, "system", "You can call", "in words."),
        (
            [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
            True,
            "system",
            "Be kind.\n\nYou can call",
            "in words.",
        ),
        ([{"role": "user", "content": "Hi"}], False, "user", "You can call", "in words.\n\nHi"),
    ],
)
def test_the_instruction_stands_where_the_template_reads_it(
    messages: list[dict[str, Any]], reads_system: bool, role: str, beginning: str, end: str
) -> None:
    first = with_instruction(messages, [TOOL], reads_system)[0]
    assert first["role"] == role
    assert first["content"].startswith(beginning) and first["content"].endswith(end)
    assert '\n{"name": "f", "parameters": {"type": "object"}}\n' in first["content"]


@pytest.mark.parametrize(
    "sign, name",
    [
        ("<tool_call>", "hermes"),
        ("<tool_call>\n<function=name>", "qwen3_coder"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        ('{"name": function name, "parameters": dictionary}', "llama3_json"),
        ("[func_name1(a=b)]", "pythonic"),
        ("", "json"),
    ],
)
def test_the_format_is_chosen_from_the_template(sign: str, name: str) -> None:
    assert detect_tool_format([OBJECT, sign], reads_tools=True).name == name
    assert detect_tool_format([TURNS], reads_tools=False).name == "hermes"


def test_reasoning_is_chosen_from_the_template() -> None:
    assert detect_reasoning_format([TURNS]) is None
    for sign, name in (("</think>", "think"), ("[THINK]", "mistral")):
        found = detect_reasoning_format([TURNS, sign])
        assert found is not None and found.name == name
