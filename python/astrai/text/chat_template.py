"""`ChatTemplate`: a model's Jinja chat template, rendered as its authors' tools render it.

Templates come with model files and are treated as hostile: immutable sandbox, copies of the
messages, bounds on what an expression may multiply to and on the length of the result. Nothing a
client sends is ever compiled. Settings follow transformers' chat_template_utils.py. A compiled
template may be rendered from several threads."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from astrai.text.template_traits import TemplateTraits, probe_template

__all__ = ["ChatTemplate", "TemplateError"]

_MAX_CHARACTERS = 16_000_000  # of one rendered prompt; far above any context
_MAX_POWER = 64


class TemplateError(ValueError):
    """A template that does not compile, or refuses or fails on the messages given."""


class ChatTemplate:
    """One or several named templates of a model."""

    def __init__(
        self, source: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        """source: the template, or templates by name ("default", "tool_use", ...).
        special_tokens: strings that templates use by role, such as "bos_token".

        Raises TemplateError for a template that does not compile."""
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        if not self.sources:
            raise TemplateError("chat template: no template given.")
        self.special_tokens = dict(special_tokens or {})
        environment = _environment()
        self._templates: dict[str, jinja2.Template] = {}
        for name, text in self.sources.items():
            try:
                self._templates[name] = environment.from_string(text)
            except (jinja2.TemplateError, RecursionError) as error:
                raise TemplateError(f"chat template {name!r} does not compile: {error}") from error

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """The prompt text of a conversation.

        messages: as in the OpenAI API; neither they nor tools are modified. A content of None acts
        as "", and a tool call's arguments, an object or JSON text, are given in the form that the
        template wants. extra: further variables for the template.

        Raises TemplateError with the template's own message where it raises one."""
        as_text = self.traits.wants_text_arguments
        return self._render(messages, tools, add_generation_prompt, as_text, extra)

    @cached_property
    def traits(self) -> TemplateTraits:
        """What this template can express."""
        return probe_template(
            lambda messages, tools, as_text: self._render(messages, tools, True, as_text, {})
        )

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        arguments_as_text: bool,
        extra: Mapping[str, Any],
    ) -> str:
        variables: dict[str, Any] = {
            **self.special_tokens,
            **copy.deepcopy(dict(extra)),
            "messages": [_prepared(message, arguments_as_text) for message in messages],
            "tools": copy.deepcopy(tools) or None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._choose(bool(tools))
        pieces: list[str] = []
        n_characters = 0
        try:
            for piece in template.generate(**variables):
                n_characters += len(piece)
                if n_characters > _MAX_CHARACTERS:
                    raise TemplateError("chat template: the prompt it renders is too long.")
                pieces.append(piece)
        except TemplateError:
            raise
        except Exception as error:
            # Templates are programs: whatever they fail with is a fault of template or messages.
            raise TemplateError(f"chat template failed: {error}") from error
        return "".join(pieces)

    def _choose(self, has_tools: bool) -> jinja2.Template:
        if has_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        return next(iter(self._templates.values()))


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The immutable sandbox, with a bound on repetition and powers."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**" and not (abs(left) <= _MAX_POWER and abs(right) <= _MAX_POWER):
            raise TemplateError("chat template: a power is too large.")
        if operator == "*":
            for times, sequence in ((left, right), (right, left)):
                if (
                    isinstance(times, int)
                    and isinstance(sequence, str | list | tuple)
                    and times * len(sequence) > _MAX_CHARACTERS
                ):
                    raise TemplateError("chat template: a repetition is too long.")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} marks assistant text for training; here it is only
    its body."""

    tags = {"generation"}  # noqa: RUF012 - the attribute jinja2 looks for

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        scope = jinja2.nodes.Scope(body)
        return scope.set_lineno(line)


def _environment() -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as prompts want it: jinja2's own filter escapes <, >, & and quotes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _prepared(message: Mapping[str, Any], arguments_as_text: bool) -> dict[str, Any]:
    """A copy of one message in the form templates expect."""
    prepared = copy.deepcopy(dict(message))
    calls = prepared.get("tool_calls")
    if prepared.get("content") is None and ("content" in prepared or calls):
        prepared["content"] = ""
    if isinstance(calls, list):
        for call in calls:
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict) and "arguments" in function:
                arguments = _parsed_arguments(function["arguments"])
                if arguments_as_text and not isinstance(arguments, str):
                    arguments = _tojson(arguments)
                function["arguments"] = arguments
    return prepared


def _parsed_arguments(arguments: Any) -> Any:
    """Arguments of a tool call as an object; "" and "null" are none at all, and text that is not
    JSON stays text."""
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return {} if parsed is None else parsed
