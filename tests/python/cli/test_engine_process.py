"""`astrai-serve --engine-process on`: two processes that start, end and fail together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from test_serve_process import run, start

from astrai.cli.config import read_config
from astrai.cli.options import OptionError, server_options
from astrai.engine.child import EngineProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
from toy_models import llama

COMMAND = ["-m", "astrai.cli.serve", "--device", "cpu", "--engine-process", "on"]
ASK = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0}


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def engine_pid(self) -> int:
        (pid,) = children(self.process.pid)
        return pid

    def ask_in_thread(self) -> tuple[threading.Thread, list[httpx.Response]]:
        """A request that the server has taken."""
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(self.url + "/v1/completions", json=ASK, timeout=60))

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.5)  # the engine stands still, so there is nothing to see of it
        return thread, answers


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come to hold")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    llama().save_pretrained(path)
    return path


@pytest.fixture
def running(folder: Path, tmp_path: Path) -> Iterator[Running]:
    log = tmp_path / "log"
    argv = ["--model", str(folder), "--drain-timeout-s", "60"]
    process, url = start(log, *argv, command=COMMAND)
    server = Running(process, url, log)
    engine_pid = server.engine_pid
    yield server
    process.kill()
    process.wait()
    until(lambda: not is_running(engine_pid))


def test_it_answers_as_an_engine_in_process(running: Running, folder: Path, tmp_path: Path) -> None:
    command = [*COMMAND[:-1], "off"]
    other, other_url = start(tmp_path / "other", "--model", str(folder), command=command)
    try:
        texts = []
        for url in (running.url, other_url):
            body = {**ASK, "logprobs": 3, "return_token_ids": True}
            answer = httpx.post(url + "/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            texts.append(answer.json()["choices"])
            stats = httpx.get(url + "/stats").json()
            assert (stats["total_tasks"], stats["total_tokens"]) == (1, 5)
            assert "astrai_kv_cache_pages" in httpx.get(url + "/metrics").text
            steps = httpx.get(url + "/debug/inspector").json()["steps"]
            assert [step["sampled_tokens"] for step in steps] == [1] * 5
        assert texts[0] == texts[1]
        assert children(other.pid) == []
        # The summary tells the same model in either place.
        summaries = [
            [line for line in log.read_text().splitlines() if line.startswith("  model ")]
            for log in (running.log, tmp_path / "other")
        ]
        assert summaries[0] == summaries[1] != []
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("signalled", ["server", "both", "terminal"])
def test_a_signal_lets_open_requests_finish(running: Running, signalled: str) -> None:
    engine_pid = running.engine_pid
    os.kill(engine_pid, signal.SIGSTOP)
    thread, answers = running.ask_in_thread()
    if signalled == "terminal":  # Ctrl-C goes to the group in its foreground
        assert os.getpgid(engine_pid) != os.getpgid(running.process.pid)
        running.process.send_signal(signal.SIGINT)
    else:
        running.process.send_signal(signal.SIGTERM)
    if signalled == "both":
        os.kill(engine_pid, signal.SIGTERM)
    until(lambda: httpx.get(running.url + "/ready").status_code == 503)
    os.kill(engine_pid, signal.SIGCONT)
    thread.join(60)
    assert answers[0].status_code == 200 and answers[0].json()["usage"]["completion_tokens"] == 5
    assert running.process.wait(60) == 0
    assert not is_running(engine_pid)


def test_an_engine_that_dies_fails_its_requests_and_no_more(running: Running) -> None:
    engine_pid = running.engine_pid
    os.kill(engine_pid, signal.SIGSTOP)
    thread, answers = running.ask_in_thread()
    os.kill(engine_pid, signal.SIGKILL)
    thread.join(60)
    assert answers[0].status_code == 500
    assert "process has ended" in answers[0].json()["error"]["message"]
    for path in ("/health", "/ready"):
        assert httpx.get(running.url + path).status_code == 503
    again = httpx.post(running.url + "/v1/completions", json=ASK)
    assert again.status_code == 503 and again.json()["error"]["code"] == "engine_dead"
    for path in ("/stats", "/metrics", "/v1/models"):
        assert httpx.get(running.url + path).status_code == 200
    until(lambda: "was ended by SIGKILL" in running.log.read_text())
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert "Traceback" not in running.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_an_engine_does_not_outlive_its_server(running: Running, number: int) -> None:
    engine_pid = running.engine_pid
    running.process.send_signal(number)
    running.process.wait(60)
    until(lambda: not is_running(engine_pid))


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--model", "/no/such/folder"], ["/no/such/folder"]),
        (["--max-seq-len", "1000000"], ["max_seq_len is 1000000"]),  # known to the engine alone
        (["--kv-mode", "paged", "--device", "abacus"], ["abacus"]),
    ],
)
def test_a_start_that_fails_says_why(folder: Path, argv: list[str], words: list[str]) -> None:
    done = run("--model", str(folder), "--port", "0", "--engine-process", "on", *argv)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert done.stderr.count("error:") == 1


@pytest.mark.parametrize(
    "body, words",
    [
        ("return 3", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL, as by a system"),
    ],
)
def test_a_process_that_ends_while_it_loads_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    (tmp_path / "short_lived.py").write_text(f"def main(fd):\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    process = EngineProcess("short_lived")
    with pytest.raises(RuntimeError, match=words):
        process.wait_until_ready()
    process.kill()


def test_yaml_takes_the_bare_words(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    for word in ("on", "off", "auto"):
        file.write_text(f"server: {{engine_process: {word}}}")
        assert read_config(file, server_options()) == {"engine_process": word}
    file.write_text("server: {dtype: on}")
    with pytest.raises(OptionError, match=r"server\.dtype"):
        read_config(file, server_options())


@pytest.mark.model
def test_the_openai_client_streams_tools_and_schemas(tmp_path: Path) -> None:
    argv = ["--max-batch-size", "4", "--kv-tokens", "4096"]
    process, url = start(tmp_path / "log", *argv, command=COMMAND)
    try:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none")
        messages: Any = [{"role": "user", "content": "Name a colour."}]
        options: Any = {"model": "astrai", "messages": messages, "temperature": 0}
        whole = client.chat.completions.create(**options, max_tokens=12)
        chunks = client.chat.completions.create(**options, max_tokens=12, stream=True)
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert streamed == whole.choices[0].message.content != ""
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answer = client.chat.completions.create(**options, response_format=form, max_tokens=60)
        assert '"a"' in (answer.choices[0].message.content or "")
        tool = {"type": "function", "function": {"name": "paint", "parameters": schema}}
        choice = {"type": "function", "function": {"name": "paint"}}
        called = client.chat.completions.create(
            **options, tools=[tool], tool_choice=choice, max_tokens=60
        )
        (call,) = called.choices[0].message.tool_calls or []
        assert call.function.name == "paint"
        bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
        with pytest.raises(openai.BadRequestError, match="response_format"):
            client.chat.completions.create(**options, response_format=bad)
    finally:
        process.terminate()
        assert process.wait(60) == 0
