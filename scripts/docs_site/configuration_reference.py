"""The configuration reference: settings of astrai-serve, environment variables, build options."""

from __future__ import annotations

import re

from markup import code, escaped, table
from repository_links import ROOT

from astrai import env
from astrai.cli.options import Option, server_options

_KINDS = {str: "text", int: "whole number", float: "number", bool: "on or off"}
_VARIABLE = re.compile(r"\bASTR(?:AI)?_[A-Z_]+\b")
_BUILD_TEXT = re.compile(
    r'^\w+\((ASTRAI_\w+) "?([^" ]*)"? (?:CACHE \w+ )?"([^"]+)"\)', re.MULTILINE
)
_BUILD_SWITCH = re.compile(r'^option\((ASTRAI_\w+) "([^"]+)" (ON|OFF)\)', re.MULTILINE)


def settings_page() -> str:
    """A table for each group of settings, each setting with an anchor of its key."""
    groups: dict[str, list[Option]] = {}
    for option in server_options():
        groups.setdefault(option.group, []).append(option)
    head = ("flag, key, variable", "value", "default", "what")
    return "\n".join(
        f"### {group.capitalize()}\n\n{table(head, map(_row, options))}"
        for group, options in groups.items()
    )


def _row(option: Option) -> list[str]:
    flags = [option.flag, *(n for n in option.names if n not in (option.field, option.flag))]
    names = [code("--" + flag.replace("_", "-")) for flag in flags]
    if option.kind is bool:
        names.append(code("--no-" + option.flag.replace("_", "-")))
    names.append(f"key {code(option.field)}")
    names += [f"variable {code(name)}" for name in _VARIABLE.findall(option.help)]
    anchor = f'<a id="{option.field}"></a>'
    return [anchor + "<br>".join(names), _accepted(option), _default(option), escaped(option.help)]


def _accepted(option: Option) -> str:
    """The kind of value and its range."""
    if option.choices:
        return ", ".join(map(code, option.choices))
    kind = _KINDS[option.kind] + (", several" if option.many else "")
    low, high = option.minimum, option.maximum
    if low is None and high is None:
        return kind
    if high is None:
        return f"{kind}, at least {low:g}"
    return f"{kind}, {low:g} to {high:g}"


def _default(option: Option) -> str:
    if option.default in (None, ()):
        return "left out"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return code(str(option.default))


def environment_table() -> str:
    rows = ([code(name), escaped(text)] for name, text in env.VARIABLES.items())
    return table(("variable", "what"), rows)


def build_options_table() -> str:
    """CMake's cache variables, as cmake/AstraiOptions.cmake declares them."""
    text = (ROOT / "cmake" / "AstraiOptions.cmake").read_text(encoding="utf-8")
    found = [m.groups() for m in _BUILD_TEXT.finditer(text)]
    found += [(name, state, said) for name, said, state in _BUILD_SWITCH.findall(text)]
    rows = (
        [code(name), code(value) if value else "empty", escaped(said)]
        for name, value, said in found
    )
    return table(("option", "default", "what"), rows)
