"""A kernel that fails takes the device from the process, and nothing else: every request hears of
it, the engine says that it is dead and shuts down, and the process ends as it would have ended."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from trapping import CASES, EXIT_STATUS, N_RUNNING, outcome

import astrai

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
IN_PROCESS = "the engine has stopped after a fault"
OF_A_CHILD = "the engine's process has ended; restart the server"


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_error_ends_requests_and_engine_and_not_the_process(case: str) -> None:
    path = [str(Path(astrai.__file__).parents[1]), str(HERE), str(HERE.parent), *sys.path]
    done = subprocess.run(
        [sys.executable, str(HERE / "trapping.py"), case],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == EXIT_STATUS, done.stderr
    assert "terminate called" not in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("shutdown_s", 0) < 10
    assert found.pop("n_ended") > N_RUNNING
    assert found == {"reasons": ["error"], "errors": [IN_PROCESS], "refusal": "EngineDeadError"}
    assert "CUDA error" in done.stderr  # the log says what it was


def test_a_kernel_error_in_the_engines_process_leaves_the_servers_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("orjson")
    from astrai.engine.child import ChildClient, EngineProcess

    caplog.set_level(logging.ERROR)
    process = EngineProcess("trapping")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        process.configure({})
        client = ChildClient(process.channel, process.wait_until_ready())
        loop.call_soon_threadsafe(client.attach, loop)
        found = outcome(client)
        deadline = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        process.kill()
    assert found.pop("n_ended") > N_RUNNING
    assert set(found.pop("errors")) <= {IN_PROCESS, OF_A_CHILD}
    assert found == {"reasons": ["error"], "refusal": "EngineDeadError"}
    assert caplog.messages == ["the engine's process ended with status 1; restart the server"]
