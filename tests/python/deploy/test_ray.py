"""The example on a local Ray: two replicas of the default model behind one port.

`python -m pytest -m ray tests/python/deploy`, with the ray extra installed. Starting Ray, two
engines and later a third takes about a minute, so it is no part of every run.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import util
from itertools import count
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

import astrai

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "ray_serve.yaml"
PACKAGE_FOLDER = Path(astrai.__file__).parents[1]
WAIT_S = 240

pytestmark = [
    pytest.mark.model,
    pytest.mark.ray,
    pytest.mark.skipif(
        util.find_spec("ray") is None, reason="needs Ray: pip install 'astrai[ray]'"
    ),
]


def wait_for(result: Callable[[], Any], what: str) -> Any:
    """The first true result. Errors of the connection are no result."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if found := result():
                return found
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within {WAIT_S} s: {what}")


@pytest.fixture(scope="module")
def http(
    default_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path_factory.mktemp("ray") / "serve.yaml"
    text = EXAMPLE.read_text()
    assert "port: 8000" in text
    config.write_text(text.replace("port: 8000", f"port: {port}"))
    env = {**os.environ, "PYTHONPATH": str(PACKAGE_FOLDER), "RAY_USAGE_STATS_ENABLED": "0"}
    log = (config.parent / "serve.log").open("wb")
    serve = [sys.executable, "-m", "ray.serve.scripts", "run", str(config)]
    process = subprocess.Popen(
        serve,
        env=env,
        stdout=log,
        stderr=subprocess.STDOUT,
        # A shell that starts the tests in its background has SIGINT ignored for all of them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S)
    try:
        wait_for(lambda: len(replicas(client)) == 2, f"two replicas, see {log.name}")
        yield client
    finally:
        client.close()
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
        log.close()


def replicas(http: httpx.Client) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = http.get("/replicas").raise_for_status().json()["replicas"]
    return found


def test_the_official_clients_stream_and_wait(http: httpx.Client) -> None:
    url = str(http.base_url).rstrip("/")
    messages = [{"role": "user", "content": "Name one colour."}]
    asked: Any = {"model": "astrai", "messages": messages, "max_tokens": 8}
    asked["extra_body"] = {"temperature": 0}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", timeout=WAIT_S) as client:
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = client.chat.completions.create(**asked, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        models = [model.id for model in client.models.list()]
    with anthropic.Anthropic(base_url=url, api_key="any", timeout=WAIT_S) as other:
        message: Any = other.messages.create(**asked).content[0]
        with other.messages.stream(**asked) as stream:
            streamed = "".join(stream.text_stream)

    assert whole and whole == text == message.text == streamed
    assert models == ["astrai"]


def test_a_prompt_meets_the_pages_of_the_one_before(http: httpx.Client) -> None:
    for topic in ("rivers", "foxes", "engines", "colours"):
        ids = http.post("/tokenize", json={"prompt": f"All about {topic}. " * 40}).json()["tokens"]
        body = {"prompt": ids, "max_tokens": 1}
        answers = [http.post("/v1/completions", json=body) for _ in range(2)]

        assert answers[0].headers["x-astrai-replica"] == answers[1].headers["x-astrai-replica"]
        details = answers[1].json()["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == (len(ids) - 1) // 16 * 16


def test_a_client_that_goes_frees_its_pages(http: httpx.Client) -> None:
    def ended() -> list[int]:
        stats = replicas(http).values()
        return [
            sum(each["finished"]["cancelled"] for each in stats),
            sum(each["kv_pages"]["held"] for each in stats),
        ]

    before, held = ended()
    assert held == 0
    body = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
        wait_for(lambda: ended()[1] > 0, "pages held for the request")

    wait_for(lambda: ended() == [before + 1, 0], "the request cancelled and its pages free")


def test_a_stored_response_is_continued_where_it_is(http: httpx.Client) -> None:
    for name in replicas(http):
        asked = {"model": "astrai", "input": "My name is Ada.", "max_output_tokens": 4}
        first = http.post("/v1/responses", json=asked, headers={"x-astrai-replica": name})
        more = {**asked, "input": "Who am I?", "previous_response_id": first.json()["id"]}
        second = http.post("/v1/responses", json=more)

        assert second.status_code == 200
        assert [first.headers["x-astrai-replica"], second.headers["x-astrai-replica"]] == [name] * 2


def test_a_replica_that_dies_takes_its_own_requests_alone_and_comes_back(
    http: httpx.Client,
) -> None:
    before = replicas(http)
    victim, other = before
    body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
    load = Load(http)

    def stream(name: str) -> Any:
        return http.stream("POST", "/v1/completions", json=body, headers={"x-astrai-replica": name})

    with load, stream(victim) as dying, stream(other) as living:
        dying_lines, living_lines = dying.iter_lines(), living.iter_lines()
        next(dying_lines), next(living_lines)
        wait_for(lambda: load.answered_by(victim) and load.answered_by(other), "load on both")
        killed_at = time.monotonic()
        os.kill(before[victim]["pid"], signal.SIGKILL)
        lost, kept = "\n".join(dying_lines), "\n".join(living_lines)
        wait_for(lambda: len(set(replicas(http)) - {victim}) == 2, "another replica in its place")

    assert '"code":"engine_gone"' in lost
    assert '"error"' not in kept and kept.rstrip().endswith("data: [DONE]")
    # Those of the load that failed were open on the replica when it died; each client had one.
    assert len(load.failed) <= load.n_clients
    assert all(began_at < killed_at for began_at, _ in load.failed), (killed_at, load.failed)
    assert {status for _, status in load.failed} <= {503}
    assert any(began_at > killed_at for began_at, _ in load.answered)


class Load:
    """Clients that send one request after another to any replica while it is entered."""

    n_clients = 4

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(i,)) for i in range(self.n_clients)
        ]
        self.answered: list[tuple[float, str]] = []  # when it began, the replica
        self.failed: list[tuple[float, int]] = []  # when it began, the status

    def answered_by(self, name: str) -> bool:
        return any(replica == name for _, replica in self.answered)

    def _ask(self, client: int) -> None:
        for i in count():
            if self._is_over.is_set():
                return
            began_at = time.monotonic()
            body = {"prompt": f"Client {client} asks {i}: " * 12, "max_tokens": 8}
            answer = self._http.post("/v1/completions", json=body)
            if answer.status_code == 200:
                self.answered.append((began_at, answer.headers["x-astrai-replica"]))
            else:
                self.failed.append((began_at, answer.status_code))

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
