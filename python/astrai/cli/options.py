"""Command-line flags and YAML keys, both made from the fields of `ServerSettings`."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from astrai.server.settings import ServerSettings


class OptionError(ValueError):
    """A flag or key that does not exist or a value that it does not take."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as the command line and the YAML file know it.

    kind: str, int, float or bool, of the value or (many) of its items. splits: a text holds items
    with commas between them. names: the field's name, then its aliases, with underscores.
    """

    field: str
    flag: str
    names: tuple[str, ...]
    kind: type
    many: bool
    splits: bool
    choices: tuple[str, ...]
    default: Any
    group: str
    help: str
    minimum: float | None
    maximum: float | None

    def check(self, value: Any, where: str) -> Any:
        """value as the field takes it. Raises OptionError naming `where` and what is accepted."""
        if isinstance(value, bool) and {*self.choices} >= _SWITCH:
            value = "on" if value else "off"  # YAML takes the bare words for booleans
        if self.many:
            items = [value] if isinstance(value, str) else value
            if not isinstance(items, (list, tuple)):
                raise OptionError(f"{where} should be a text or a list of texts, got {value!r}")
            return tuple(part for item in items for part in self._check_item(item, where))
        return self._check_one(value, where)

    def check_text(self, text: str, where: str) -> Any:
        """As `check`, for a value spelled as on a command line: 4096, 0.5, true."""
        try:
            value = _WORDS[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError):
            raise OptionError(f"{where} should be {_KINDS[self.kind]}, got {text!r}") from None
        return self.check(value, where)

    def _check_item(self, item: Any, where: str) -> tuple[Any, ...]:
        """The items that one text stands for."""
        self._check_one(item, where)
        if not self.splits:
            return (item,)
        return tuple(self._check_one(part.strip(), where) for part in item.split(","))

    def _check_one(self, value: Any, where: str) -> Any:
        accepted = (int, float) if self.kind is float else self.kind
        is_kind = isinstance(value, accepted)
        if self.kind is not bool and isinstance(value, bool):
            is_kind = False
        if not is_kind:
            raise OptionError(f"{where} should be {_KINDS[self.kind]}, got {value!r}")
        if value == "":
            # As from an unset variable: an empty key would admit everyone, an empty host listen
            # on every address.
            raise OptionError(f"{where} is empty; give a text or leave it out")
        if self.choices and value not in self.choices:
            raise OptionError(f"{where} is {value!r}; accepted are {', '.join(self.choices)}")
        if self.minimum is not None and not value >= self.minimum:
            raise OptionError(f"{where} is {value}; it should be at least {self.minimum:g}")
        if self.maximum is not None and not value <= self.maximum:
            raise OptionError(f"{where} is {value}; it should be at most {self.maximum:g}")
        return value


_WORDS = {"true": True, "false": False}
_SWITCH = {"on", "off"}
_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def server_options() -> list[Option]:
    """One option for each field of ServerSettings, in its order."""
    hints = typing.get_type_hints(ServerSettings)
    return [_option(field, hints[field.name]) for field in dataclasses.fields(ServerSettings)]


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    choices: tuple[str, ...] = ()
    many = typing.get_origin(hint) is tuple
    if typing.get_origin(hint) is typing.Literal:
        choices, hint = typing.get_args(hint), str
    kind = typing.get_args(hint)[0] if many else hint
    meta = field.metadata
    flag = meta["flag"] or field.name
    return Option(
        field=field.name,
        flag=flag,
        names=tuple(dict.fromkeys((field.name, flag, *meta["aliases"]))),
        kind=kind,
        many=many,
        splits=meta["splits"],
        choices=choices,
        default=field.default,
        group=meta["group"],
        help=meta["help"],
        minimum=meta["minimum"],
        maximum=meta["maximum"],
    )


def nearest(name: str, names: Iterable[str]) -> str:
    """The known name that looks most like `name`."""
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)[0]


def add_flags(parser: argparse.ArgumentParser, options: list[Option]) -> None:
    """A flag for each option, in groups. Flags that are not given leave no attribute."""
    groups: dict[str, Any] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        names = [option.flag, *(n for n in option.names if n not in (option.field, option.flag))]
        flags = ["--" + name.replace("_", "-") for name in names]
        extra: dict[str, Any] = {"dest": option.field, "default": argparse.SUPPRESS}
        text = option.help.replace("%", "%%")
        if option.default not in (None, ()):
            text += f" (default {_shown(option.default)})"
        if option.kind is bool:
            extra["action"] = argparse.BooleanOptionalAction
        else:
            extra["metavar"] = "|".join(option.choices) or ("TEXT" if option.kind is str else "N")
            extra["type"] = _parser_of(option, flags[0])
            if option.many:
                extra["action"] = "append"
        groups[option.group].add_argument(*flags, help=text, **extra)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _parser_of(option: Option, flag: str) -> Any:
    def parse(text: str) -> Any:
        try:
            return option.check_text(text, flag)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse
