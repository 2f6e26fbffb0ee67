"""Python's cycle collector in a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Without the collector while a process starts: modules and vocabularies make objects by the
    hundred thousand, which stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def quiet_collector() -> None:
    """Keep Python's cycle collector from walking over everything loaded whenever a request makes
    objects: a body of 500,000 small lists took ten times as long to parse with it.

    Changes the whole process; for servers that are about to serve.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
