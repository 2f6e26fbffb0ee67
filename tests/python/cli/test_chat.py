"""`astrai chat`: what it sends, shows and remembers; its faults; both sources."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import astrai
from astrai.cli import chat
from astrai.cli.chat.session import ChatSession
from astrai.cli.chat.source import ChatError, ChatSource, Messages, Piece, Usage
from astrai.cli.main import main

PACKAGE_FOLDER = Path(astrai.__file__).parents[1]


class ScriptedSource(ChatSource):
    """Answers with the pieces of `script`, an exception among them is raised."""

    name = "scripted"

    def __init__(self, *script: str | BaseException | Piece) -> None:
        self.script = script
        self.usage = Usage(20, 12, 3)
        self.asked: list[tuple[Messages, dict[str, Any]]] = []
        self.n_closed = 0

    def reply(self, messages: Messages, sampling: dict[str, float | int]) -> Iterator[Piece]:
        self.asked.append(([dict(message) for message in messages], dict(sampling)))
        try:
            for piece in self.script:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece if isinstance(piece, Piece) else Piece(piece)
        finally:
            self.n_closed += 1

    def close(self) -> None:
        pass


def talk(source: ChatSource, *lines: str, **options: Any) -> int:
    session = ChatSession(source, options.pop("sampling", {}), options.pop("system", None))
    return session.run(io.StringIO("\n".join(lines)), is_terminal=False, **options)


def test_only_answers_are_printed_and_turns_are_remembered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = ScriptedSource("Good ", Piece("hmm", is_reasoning=True), "day")
    assert talk(source, "hello", "", "again", system="Be brief", sampling={"seed": 3}) == 0
    assert capsys.readouterr() == ("Good day\nGood day\n", "")
    system = {"role": "system", "content": "Be brief"}
    first = [system, {"role": "user", "content": "hello"}]
    second = [
        *first,
        {"role": "assistant", "content": "Good day"},
        {"role": "user", "content": "again"},
    ]
    assert source.asked == [(first, {"seed": 3}), (second, {"seed": 3})]


def test_commands_change_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    source = ScriptedSource("x")
    lines = ["a", "/retry", "/set top_k 5", "/set temperature 0.5", "/set top_k", "/system Now"]
    assert talk(source, *lines, "b", "/clear", "/system", "c", "/help", "/quit", "d") == 0
    asked = [[message["content"] for message in messages] for messages, _ in source.asked]
    assert asked == [["a"], ["a"], ["Now", "b"], ["c"]]
    assert source.asked[-1][1] == {"temperature": 0.5}
    assert "/retry" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/nothing", "no command /nothing"),
        ("/retry", "nothing to answer"),
        ("/set", "/set takes"),
        ("/set top_q 1", "/set takes"),
        ("/set top_k 1 2", "/set takes"),
        ("/set top_k many", "top_k should be a number"),
    ],
)
def test_a_wrong_command_ends_a_script_with_its_reason(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(ScriptedSource("x"), line, "never") == 1
    out, err = capsys.readouterr()
    assert out == "" and told in err


def test_a_failed_turn_is_forgotten_and_its_stream_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = ScriptedSource("par", ChatError("it broke"))
    session = ChatSession(source, {})
    assert session.run(io.StringIO("a\nb"), is_terminal=False) == 1
    assert session._messages == [] and source.n_closed == 1
    assert "it broke" in capsys.readouterr().err


def test_a_server_is_talked_to(
    fake_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (fake_url, fake_url + "/v1/", fake_url.removeprefix("http://")):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        argv = ["chat", "--url", url, "--api-key", "secret", "--max-tokens", "14", "--seed", "1"]
        assert main(argv) == 0
        assert capsys.readouterr() == ("Once there was\n", "")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--url", "http://127.0.0.1:9"], "no server answers at 127.0.0.1:9"),
        (["--url", "ftp://127.0.0.1"], "no http or https address"),
        (["--url", "http://127.0.0.1:9", "--model", "x"], "--served-model"),
        (["--model", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_a_start_that_fails_says_why(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat.main(argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and told in err and err.startswith("astrai chat: error: ")


def test_refusals_of_a_server_are_told(
    fake_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat.main(["--url", fake_url, "--api-key", "wrong"]) == 1
    assert "401" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("refuse me\n"))
    assert chat.main(["--url", fake_url, "--api-key", "secret"]) == 1
    assert "refused on request" in capsys.readouterr().err


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, *argv: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "astrai", *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # A shell that starts the tests in its background has SIGINT ignored for all of them.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER), "TERM": "dumb"},
        )
        os.close(slave)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str, timeout_s: float = 60) -> None:
        """Read until text is shown behind what an earlier call saw."""
        end = time.monotonic() + timeout_s
        while text not in self._unread:
            assert time.monotonic() < end, f"{text!r} is missing in {self._unread!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self._unread += os.read(self._master, 4096).decode()
        self._unread = self._unread.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_at_a_terminal_figures_show_and_ctrl_c_stops_an_answer_alone(fake_url: str) -> None:
    terminal = Terminal("chat", "--url", fake_url, "--api-key", "secret")
    try:
        terminal.until("> ")
        terminal.type("/set max_tokens 14\n")
        terminal.until("> ")
        terminal.type("hi\n")
        terminal.until("Once there was")
        terminal.until("14 tokens")
        terminal.type("/set max_tokens\n")
        terminal.until("> ")
        terminal.type("again\n")
        terminal.until("Once")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("> ")
        terminal.type("/nothing\n")
        terminal.until("no command")
        # Typed before readline takes the terminal, an end of file reaches it as a NUL.
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()


@pytest.mark.model
def test_a_model_is_talked_to_in_this_process(
    default_model_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Name a colour.\nAnd another.\n"))
    argv = ["--model", str(default_model_path), "--max-tokens", "8", "--temperature", "0"]
    assert chat.main([*argv, "--dtype", "float32"]) == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) >= 2 and all(answers[:1])


def test_unknown_commands_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["brew"]) == 2
    assert "chat" in capsys.readouterr().err
    assert main([]) == 0
    assert "astrai COMMAND --help" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("astrai 0.")
