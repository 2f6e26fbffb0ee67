"""A server process over the fake engine, for the programs that talk to servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_serve_process import WITH_FAKE, start


@pytest.fixture(scope="module")
def fake_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its answers are the fake engine's text, a byte a token; needs the key "secret"."""
    log = tmp_path_factory.mktemp("server") / "log"
    process, url = start(log, "--api-key", "secret", command=["-c", WITH_FAKE])
    yield url
    process.kill()
    process.wait()
