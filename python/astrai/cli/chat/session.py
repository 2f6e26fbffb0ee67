"""The conversation at the terminal: lines in, streamed answers out, commands that start with /."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, TextIO

from astrai.cli.chat.source import ChatError, ChatSource, Messages, Piece

__all__ = ["ChatSession"]

_COMMANDS = {
    "/help": "this list",
    "/retry": "the last answer again",
    "/clear": "forget the conversation",
    "/system TEXT": "another system prompt; the conversation starts anew",
    "/set NAME VALUE": "max_tokens, temperature, top_p, top_k or seed; without a value its default",
    "/quit": "leave, as Ctrl-D does; Ctrl-C stops an answer",
}
_KINDS = {"max_tokens": int, "temperature": float, "top_p": float, "top_k": int, "seed": int}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class ChatSession:
    """Messages so far and the sampling parameters; `run` talks until the input ends."""

    def __init__(
        self, source: ChatSource, sampling: dict[str, float | int], system: str | None = None
    ) -> None:
        self._source = source
        self._sampling = dict(sampling)
        self._system = system
        self._messages: Messages = []
        self._is_terminal = False
        self._clear()

    def run(self, lines: TextIO, is_terminal: bool) -> int:
        """Answer each line. Returns the exit status: at a terminal an answer that fails is told
        and the talk goes on, elsewhere it ends with 1."""
        self._is_terminal = is_terminal
        self._say(f"{self._source.name}: /help lists the commands")
        for line in _typed_lines() if is_terminal else lines:
            text = line.strip()
            if text in ("/quit", "/exit"):
                break
            try:
                self._handle(text)
            except (ChatError, ValueError) as error:
                print(f"error: {error}", file=sys.stderr)
                if not is_terminal:
                    return 1
        return 0

    def _handle(self, text: str) -> None:
        if not text:
            return
        if not text.startswith("/"):
            self._messages.append({"role": "user", "content": text})
            return self._answer()
        command, _, rest = text.partition(" ")
        if command == "/clear":
            return self._clear()
        if command == "/system":
            self._system = rest.strip() or None
            return self._clear()
        if command == "/set":
            return self._set(*rest.split())
        if command == "/retry":
            return self._retry()
        if command != "/help":
            raise ChatError(f"there is no command {command}; /help lists those there are")
        for name, told in _COMMANDS.items():
            print(f"  {name:<16} {told}")

    def _clear(self) -> None:
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        self._messages = system

    def _set(self, name: str = "", value: str | None = None, *more: str) -> None:
        if name not in _KINDS or more:
            raise ChatError(f"/set takes one of {', '.join(_KINDS)} and a number")
        if value is None:
            self._sampling.pop(name, None)
            return
        try:
            self._sampling[name] = _KINDS[name](value)
        except ValueError:
            raise ChatError(f"{name} should be a number, got {value!r}") from None

    def _retry(self) -> None:
        if self._messages and self._messages[-1]["role"] == "assistant":
            self._messages.pop()
        if not self._messages or self._messages[-1]["role"] != "user":
            raise ChatError("there is nothing to answer yet")
        self._answer()

    def _answer(self) -> None:
        """Stream the next turn and remember it. A turn that failed leaves no trace; one that was
        interrupted is kept as far as it came."""
        began_s = time.monotonic()
        first_s: float | None = None
        shown: list[str] = []
        pieces: Any = self._source.reply(self._messages, self._sampling)
        is_whole = False
        try:
            with closing(pieces):
                for piece in pieces:
                    first_s = time.monotonic() if first_s is None else first_s
                    self._show(piece)
                    if not piece.is_reasoning:
                        shown.append(piece.text)
            is_whole = True
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
        except BaseException:
            self._messages.pop()
            raise
        print(flush=True)
        self._messages.append({"role": "assistant", "content": "".join(shown)})
        if is_whole and first_s is not None:
            self._say(self._figures(began_s, first_s))

    def _show(self, piece: Piece) -> None:
        if not piece.is_reasoning:
            print(piece.text, end="", flush=True)
        elif self._is_terminal:
            print(f"{_DIM}{piece.text}{_PLAIN}", end="", flush=True)

    def _figures(self, began_s: float, first_s: float) -> str:
        usage = self._source.usage
        parts = [f"first token after {first_s - began_s:.2f} s"]
        if usage.n_output is not None:
            seconds = time.monotonic() - first_s
            rate = f", {(usage.n_output - 1) / seconds:.1f}/s" if usage.n_output > 1 else ""
            parts.append(f"{usage.n_output} tokens{rate}")
        if usage.n_prompt is not None:
            parts.append(f"prompt {usage.n_prompt}, {usage.n_cached or 0} of it cached")
        return "; ".join(parts)

    def _say(self, text: str) -> None:
        """A remark that is not the model's: to a person only."""
        if self._is_terminal:
            print(f"{_DIM}{text}{_PLAIN}")


def _typed_lines() -> Iterator[str]:
    """Lines with editing and history, until Ctrl-D. Ctrl-C drops the line being typed."""
    with suppress(ImportError):
        import readline  # noqa: F401  # input() edits lines once it is imported
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return
