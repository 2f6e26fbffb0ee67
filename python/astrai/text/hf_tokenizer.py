"""Tokenizer and chat template of a Hugging Face folder.

Files looked at: tokenizer.json, tokenizer_config.json, special_tokens_map.json,
chat_template.jinja, chat_template.json, additional_chat_templates/*.jinja."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from astrai.text.tokenizer import Tokenizer

__all__ = ["named_templates", "special_tokens_of", "template_sources", "tokenizer_from_folder"]

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_OTHER_FORMATS = ("tokenizer.model", "vocab.json", "merges.txt", "tekken.json")


def tokenizer_from_folder(
    folder: Path, vocab_size: int = 0, bos_id: int | None = None
) -> Tokenizer | None:
    """The tokenizer of a folder, None when it has no tokenizer files at all. bos_id: what
    config.json says, used where the tokenizer's files name no BOS.

    Raises ValueError that names the file for one that is malformed or of a kind not read."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
        if others:
            raise ValueError(
                f"{folder / others[0]}: this tokenizer format is not read. Save the tokenizer as "
                f"tokenizer.json (transformers: AutoTokenizer.from_pretrained(...)"
                f".save_pretrained(...))."
            )
        return None
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Exception itself, and what the library's panics become
        raise ValueError(
            f"{path}: cannot be read as a tokenizer: {error}. Fetch it again."
        ) from error
    special_tokens = special_tokens_of(folder)

    def id_of(role: str) -> int | None:
        found: int | None = backend.token_to_id(special_tokens.get(role, ""))
        return found

    eos_id = id_of("eos_token")
    try:
        return Tokenizer(
            backend,
            bos_id=bos_id if id_of("bos_token") is None else id_of("bos_token"),
            eos_ids=() if eos_id is None else (eos_id,),
            special_tokens=special_tokens,
            vocab_size=vocab_size,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def special_tokens_of(folder: Path) -> dict[str, str]:
    """Special tokens by role; tokenizer_config.json wins over special_tokens_map.json."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = _read_object(folder / name)
        for role in _ROLES:
            token = values.get(role)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                found[role] = content
    return found


def template_sources(folder: Path) -> tuple[Path, dict[str, str]] | None:
    """(file that holds it, templates by name) of a folder's chat template, None without one.
    A template file wins over tokenizer_config.json, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        named = {"default": _read_text(path)}
        for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            named[extra.stem] = _read_text(extra)
        return path, named
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        found = named_templates(_read_object(path).get("chat_template"), str(path))
        if found:
            return path, found
    return None


def named_templates(value: object, where: str) -> dict[str, str]:
    """Templates by name from the shapes that files use: a string, or a list of objects with `name`
    and `template`. Raises ValueError for another shape."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()):
        return dict(value)
    named: dict[str, str] = {}
    for entry in value if isinstance(value, list) else [None]:
        if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
            raise ValueError(f"{where}: chat_template must be text or a list of named templates.")
        named[str(entry.get("name", "default"))] = entry["template"]
    return named


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error}. Fetch it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds a {type(value).__name__}, an object was expected.")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}.") from error
