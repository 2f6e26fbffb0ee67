"""`astrai-serve` as a process: starting, refusing to start, draining on signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

import astrai

REPO = Path(__file__).resolve().parents[3]
FAKES = REPO / "tests" / "python" / "server"
PACKAGE_FOLDER = Path(astrai.__file__).parents[1]  # the installed package, or the source tree's
# The real command with the fake engine in place of a loaded model.
WITH_FAKE = f"""
import sys
sys.path.insert(0, {str(FAKES)!r})
from fake_engine import FakeEngine
from astrai.cli import serve, summary
engine = FakeEngine()
engine.script.delay_s = 0.02
serve.start_engine = lambda settings, times: (engine, None)
sys.exit(serve.main())
"""

# The same where it takes half a second from a bound port to one that is listened on.
WITH_SLOW_START = f"""
import asyncio

import uvicorn

startup = uvicorn.Server.startup

async def late(self, sockets=None):
    await asyncio.sleep(0.5)
    await startup(self, sockets)

uvicorn.Server.startup = late
{WITH_FAKE}
"""


def start(
    log: Path, *argv: str, command: list[str], verify: ssl.SSLContext | bool = True
) -> tuple[subprocess.Popen[bytes], str]:
    """A started server that writes to log, and its URL, read from the summary."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command, "--port", "0", *argv],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER)},
        )
    for _ in range(2400):  # two minutes
        assert process.poll() is None, log.read_text()
        if found := re.search(r"https?://127\.0\.0\.1:\d+", log.read_text()):
            httpx.get(found.group() + "/health", verify=verify)
            return process, found.group()
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise AssertionError(log.read_text())


@pytest.fixture
def fake_server(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    drain_timeout_s = getattr(request, "param", "60")
    argv = ["--drain-timeout-s", drain_timeout_s]
    process, url = start(tmp_path / "log", *argv, command=["-c", WITH_FAKE])
    yield process, url
    process.kill()
    process.wait()


def stream_in_thread(url: str, max_tokens: int) -> tuple[threading.Thread, list[str]]:
    lines: list[str] = []
    is_open = threading.Event()

    def read() -> None:
        body = {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": max_tokens,
            "stream": True,
        }
        with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
                is_open.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert is_open.wait(60)
    return thread, lines


def test_sigterm_lets_open_requests_finish(
    fake_server: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, url = fake_server
    thread, lines = stream_in_thread(url, max_tokens=20)
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert lines[-2] == "data: [DONE]" and any('"length"' in line for line in lines)
    assert process.wait(60) == 0


@pytest.mark.parametrize("fake_server", ["3"], indirect=True)
def test_sigterm_cancels_what_outlasts_the_drain(
    fake_server: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, url = fake_server
    thread, lines = stream_in_thread(url, max_tokens=500)
    process.send_signal(signal.SIGTERM)
    while httpx.get(url + "/ready").status_code != 503:  # the port stays open in the drain
        time.sleep(0.01)
    refused = httpx.post(url + "/v1/completions", json={"prompt": "Hi"})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
    thread.join(60)
    assert not thread.is_alive() and lines[-2] == "data: [DONE]"
    assert '"error"' in lines[-4], "the client is told that the text is cut"
    assert process.wait(60) == 0


def test_a_second_signal_ends_at_once(fake_server: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = fake_server
    body = {"prompt": "Hi", "max_tokens": 500, "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        while httpx.get(url + "/ready").status_code != 503:
            time.sleep(0.01)
        time.sleep(0.2)  # a signal that follows at once is taken for an echo of the first
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_who_reads_the_summary_can_connect(tmp_path: Path) -> None:
    process, url = start(tmp_path / "log", command=["-c", WITH_SLOW_START])
    process.kill()
    process.wait()
    assert url.startswith("http://127.0.0.1:")


def test_it_starts_without_a_model(tmp_path: Path) -> None:
    script = REPO / "scripts" / "tools" / "server.py"
    process, url = start(tmp_path / "log", "--model", "none", command=[str(script)])
    try:
        assert httpx.get(url + "/health").json() == {"status": "ok", "model_loaded": False}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_it_serves_https_with_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    files = ["--ssl-certfile", str(cert), "--ssl-keyfile", str(key)]
    process, url = start(
        tmp_path / "log", *files, "--model", "none", command=["-c", WITH_FAKE], verify=trusting
    )
    try:
        assert url.startswith("https://")
        assert httpx.get(url + "/health", verify=trusting).status_code == 200
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
            httpx.get(url + "/health")
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http") + "/health")
        assert httpx.get(url + "/health", verify=trusting).status_code == 200
    finally:
        process.kill()
        process.wait()
    done = run("--model", "none", "--ssl-certfile", str(cert))
    assert done.returncode == 1 and "private key" in done.stderr


@pytest.mark.parametrize(
    "files, words",
    [
        (["--ssl-keyfile", __file__], ["--ssl-certfile"]),
        (["--ssl-certfile", "/no/cert.pem"], ["--ssl-certfile", "/no/cert.pem"]),
        (["--ssl-certfile", __file__], ["not a PEM certificate"]),
    ],
)
def test_bad_tls_files_are_named(files: list[str], words: list[str]) -> None:
    done = run("--model", "none", "--port", "0", *files)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_json_log_is_one_object_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process, url = start(log, "--log-format", "json", "--model", "none", command=["-c", WITH_FAKE])
    try:
        httpx.get(url + "/v1/models/a%0Ab", headers={"x-request-id": "mine"})
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert all({"time", "level", "logger"} <= line.keys() for line in lines)
    asked = {line["request_id"]: line for line in lines if "request_id" in line}
    assert asked["mine"]["status"] in (404, 503) and asked["mine"]["method"] == "GET"
    assert any("draining" in line.get("message", "") for line in lines)


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "astrai.cli.serve", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER), **env},
    )


def test_a_busy_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run("--model", "none", "--port", str(port))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"127.0.0.1:{port}" in done.stderr and "--port" in done.stderr


def test_a_missing_model_is_named() -> None:
    done = run("--model", "/no/such/folder", "--port", "0")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "/no/such/folder" in done.stderr


def test_a_bad_backend_variable_is_an_error() -> None:
    done = run("--model", "none", "--port", "0", ASTR_BACKEND="metal")
    assert done.returncode == 2
    assert "ASTR_BACKEND" in done.stderr and "torch_native" in done.stderr
