"""`astrai-serve` on a GPU as a kernel fails, with the engine in its process and in one of its own:
requests get an error, `/health` says 503, and the server ends as it is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from trapping import TRAP_ID

import astrai

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
N_RUNNING = 4
IN_PROCESS = """
import sys
import trapping
from astrai.cli.serve import main
trapping.install()
sys.exit(main())
"""
CHILD = """
import sys
from astrai.cli import engine_process
from astrai.cli.serve import main
engine_process._MODULE = "trapping_child"
sys.exit(main())
"""
TRAPPING_CHILD = """
import trapping
from astrai.cli.engine_child import main
trapping.install()
"""


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def until(holds: Callable[[], Any]) -> Any:
    for _ in range(1200):
        if found := holds():
            return found
        time.sleep(0.05)
    raise AssertionError("it does not come to hold")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("fastapi", "llguidance", "orjson", "uvicorn"):
        pytest.importorskip(name)
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("engine_process", ["off", "on"])
def test_a_kernel_error_leaves_a_server_that_says_so(
    folder: Path, tmp_path: Path, engine_process: str
) -> None:
    (tmp_path / "trapping_child.py").write_text(TRAPPING_CHILD)
    path = [str(Path(astrai.__file__).parents[1]), str(HERE), str(HERE.parent), str(tmp_path)]
    path += sys.path
    program = IN_PROCESS if engine_process == "off" else CHILD
    options = ["--device", "cuda", "--dtype", "bfloat16", "--kv-tokens", "65536"]
    options += ["--max-batch-size", "8", "--engine-process", engine_process, "--port", "0"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", program, "--model", str(folder), *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
    try:
        address = re.compile(r"http://127\.0\.0\.1:\d+")
        until(lambda: server.poll() is not None or address.search(log.read_text()))
        assert server.poll() is None, log.read_text()
        url = address.findall(log.read_text())[0]
        long = {"prompt": [1, 2, 3], "max_tokens": 8000, "temperature": 0, "ignore_eos": True}
        bodies = [{**long, "stream": i == 0} for i in range(N_RUNNING)]
        answers: list[tuple[int, str]] = []
        threads = [
            threading.Thread(
                target=lambda body=body: answers.append(ask(url, "/v1/completions", body))
            )
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        until(lambda: json.loads(ask(url, "/stats")[1])["active_tasks"] == N_RUNNING)
        trapped = ask(url, "/v1/completions", {**long, "prompt": [TRAP_ID]})
        for thread in threads:
            thread.join(60)

        assert trapped[0] == 500, trapped
        assert sorted(status for status, _ in answers) == [200] + [500] * (N_RUNNING - 1)
        (stream,) = (text for status, text in answers if status == 200)
        assert '"error"' in stream.split("data: ")[-1] or '"error"' in stream.split("data: ")[-2]
        until(lambda: ask(url, "/health")[0] == 503)
        assert ask(url, "/ready")[0] == 503
        status, text = ask(url, "/v1/completions", {**long, "max_tokens": 1})
        assert status == 503 and json.loads(text)["error"]["code"] == "engine_dead"
        for path_ in ("/stats", "/metrics", "/v1/models"):
            assert ask(url, path_)[0] == 200
        if engine_process == "on":
            until(lambda: "engine's process ended with status 1" in log.read_text())
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
    assert "CUDA error" in log.read_text()
    assert "terminate called" not in log.read_text()
