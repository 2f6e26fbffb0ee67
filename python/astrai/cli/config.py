"""The YAML file of `--config`: its `server:` section mirrors the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrai.cli.options import Option, OptionError, nearest

# `runtime:` is for tools that start a container from the same file.
_SECTIONS = ("server", "runtime")
_MERGE_TAG = "tag:yaml.org,2002:merge"  # `<<`, which a mapping may hold several times


def read_config(path: Path, options: list[Option]) -> dict[str, Any]:
    """Settings by field name from the file's `server:` section; null means left out.

    Raises OptionError naming the file and the key at fault.
    """
    import yaml  # most starts have no file

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"--config {path}: {reason}") from None
    try:
        content = yaml.load(text, _unique_keys_loader())
    except yaml.YAMLError as error:
        raise OptionError(f"--config {path}: not valid YAML: {error}") from None
    except RecursionError:
        raise OptionError(f"--config {path}: nested too deeply") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise OptionError(f"--config {path}: should hold a mapping with a server: section")
    for section in content:
        if section not in _SECTIONS:
            raise OptionError(
                f"--config {path}: unknown section {section!r}; "
                f"did you mean {nearest(str(section), _SECTIONS)!r}?"
            )
    server = content.get("server")
    if server is None:
        return {}
    if not isinstance(server, dict):
        raise OptionError(f"--config {path}: server: should be a mapping, got {server!r}")
    return _settings(server, path, options)


def _unique_keys_loader() -> Any:
    """PyYAML's safe loader, which by itself takes the last of equal keys without a word."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if isinstance(key_node, yaml.ScalarNode) and key_node.tag != _MERGE_TAG:
                    if key_node.value in seen:
                        raise yaml.constructor.ConstructorError(
                            problem=f"key {key_node.value!r} is given twice",
                            problem_mark=key_node.start_mark,
                        )
                    seen.add(key_node.value)
            return super().construct_mapping(node, deep)

    return Loader


def _settings(server: dict[Any, Any], path: Path, options: list[Option]) -> dict[str, Any]:
    by_name = {name: option for option in options for name in option.names}
    values: dict[str, Any] = {}
    for key, value in server.items():
        option = by_name.get(str(key).replace("-", "_"))
        if option is None:
            close = nearest(str(key).replace("-", "_"), by_name)
            raise OptionError(f"--config {path}: unknown key server.{key}; did you mean {close!r}?")
        if option.field in values:
            raise OptionError(f"--config {path}: server.{key} is given twice (see {option.field})")
        if value is not None:
            values[option.field] = option.check(value, f"--config {path}: server.{key}")
    return values
