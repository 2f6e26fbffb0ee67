"""ChatTemplate: the Jinja that models' authors use, and what hostile templates cannot do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from toy_tokenizers import TEMPLATE

from astrai.text import ChatTemplate, TemplateError

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] = USER, **variables: Any) -> str:
    return ChatTemplate(source).render(messages, **variables)


def test_generation_prompt_is_the_callers_choice() -> None:
    assert render(TEMPLATE) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),  # trim_blocks, lstrip_blocks
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'a': 'é<'} | tojson }}", '{"a": "é<"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hi!"),
        ("{{ bos_token }}x", "x"),  # a token that the model does not have is empty
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ tools is none }}", "True"),
    ],
)
def test_settings_are_those_of_the_models_authors(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize("pattern", ["%Y", "%d %b %Y", "100%% %A"])
def test_strftime_now_takes_any_format(pattern: str) -> None:
    before = datetime.now().strftime(pattern)
    shown = render(f"{{{{ strftime_now('{pattern}') }}}}")
    assert shown in (before, datetime.now().strftime(pattern))


def test_special_tokens_are_variables() -> None:
    template = ChatTemplate("{{ bos_token }}|{{ eos_token }}", {"bos_token": "<s>"})
    assert template.render(USER) == "<s>|"


def test_tool_use_template_is_chosen_when_there_are_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"type": "function"}]) == "1 tools"
    assert template.render(USER, tools=[]) == "plain"


def test_null_content_renders_like_empty_content() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    texts = {
        render(TEMPLATE, [{"role": "assistant", "content": content, "tool_calls": [call]}])
        for content in (None, "")
    }
    texts.add(render(TEMPLATE, [{"role": "assistant", "tool_calls": [call]}]))
    assert texts == {"<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("null", "{}"),
        (None, "{}"),
        ("not json", '"not json"'),
    ],
)
def test_tool_arguments_reach_the_template_as_an_object(arguments: Any, shown: str) -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    call = {"function": {"name": "f", "arguments": arguments}}
    assert render(source, [{"role": "assistant", "tool_calls": [call]}]) == shown


def test_the_templates_own_message_is_the_error() -> None:
    with pytest.raises(TemplateError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ (messages[0].content | attr('__class__')).mro() }}",
        "{{ 'x' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% for i in range(99999999) %}x{% endfor %}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% include 'config.json' %}",
        "{{ messages[0].nothing + 'x' }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_hostile_or_failing_templates_are_template_errors(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(TemplateError):
        render(source, messages)
    assert messages == [{"role": "user", "content": "hi"}]
    assert render("{{ messages[0].content }}", messages) == "hi"


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nonsense %}"])
def test_a_template_that_does_not_compile_says_so(source: str) -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate(source)


def test_client_text_is_never_a_template() -> None:
    text = "{{ 7 * 7 }}{% raw %}"
    assert text in render(TEMPLATE, [{"role": "user", "content": text}])
