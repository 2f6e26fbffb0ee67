"""Templates that show each family's signs, and answers of each family to the same question."""

from __future__ import annotations

# Rendered short: one byte is one token here.
_TURNS = (
    "{{ note }}{% for t in tools or [] %}TOOL {{ t.function.name }} {% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.tool_call_id %} FOR {{ m.tool_call_id }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_THINKS = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"

TEMPLATES = {
    "hermes": _TURNS + "{# <tool_call> <think> #}" + _THINKS,
    "qwen3_coder": _TURNS + "{# <tool_call> <function= #}",
    "llama3_json": _TURNS + "{# <|python_tag|> #}",
    "pythonic": _TURNS + "{# func_name1( #}",
    "mistral": _TURNS + "{# [TOOL_CALLS] #}",
    "json": _TURNS,
    "opened": _TURNS + "{% if add_generation_prompt %}<think>\n{% endif %}{# <tool_call> #}",
    "plain": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}

# Two calls: get_weather(city="Oslo é \"}]") and now(), where the family can, behind a text.
CITY = 'Oslo é "}]'
_ARGUMENTS = '{"city": "Oslo é \\"}]"}'
ANSWERS = {
    "hermes": "Let me see.\n<tool_call>\n"
    f'{{"name": "get_weather", "arguments": {_ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n"
    f"{CITY}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n"
    "</tool_call>",
    "llama3_json": "Let me see.<|python_tag|>"
    f'{{"name": "get_weather", "parameters": {_ARGUMENTS}}}; {{"name": "now", "parameters": {{}}}}',
    "pythonic": "[get_weather(city='Oslo é \"}]'), now()]",
    "mistral": f'Let me see.[TOOL_CALLS][{{"name": "get_weather", "arguments": {_ARGUMENTS}}}, '
    '{"name": "now", "arguments": {}}]',
    "json": f'[{{"name": "get_weather", "arguments": {_ARGUMENTS}}}, {{"name": "now"}}]',
}
WITH_TEXT = {"hermes", "qwen3_coder", "llama3_json", "mistral"}
