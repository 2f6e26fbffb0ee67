"""The inspector at /#inspector in a real browser: over the fake engine, and over a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import PHONE, Page
from live_server import Live

from astrai.engine import InferenceEngine

READY = "!document.getElementById('inspector-body').hidden"


def open_inspector(page: Page, url: str) -> None:
    page.go(f"{url}/#inspector")
    page.wait(READY)


def test_requests_pages_tree_and_steps_are_read_off_the_page(page: Page, live: Live) -> None:
    live.post("/v1/completions", {"prompt": "<img src=x> & <b>tree</b>\nend", "max_tokens": 1})
    open_inspector(page, live.url)
    tiles = page.text("#tiles").split()
    assert tiles[tiles.index("Running") + 1] == "1"
    assert "Held 2" in page.text("#pages") and "Cached 3" in page.text("#pages")
    assert "Free 5" in page.text("#pages") and "10 pages of 16 tokens" in page.text("#pages")
    assert "fake-0" in page.text("#requests") and "prefill 0 %" in page.text("#requests")
    assert "<img src=x> & <b>tree</b>⏎end" in page.text("#tree")
    assert "1 ref" in page.text("#tree")
    assert page.run("document.querySelectorAll('#tree img, #tree b').length") == 0
    assert "Steps 1 to 3" in page.text("#steps")
    hosts = {urlsplit(address).netloc for address in page.requested}
    assert hosts == {urlsplit(live.url).netloc}


def test_a_part_of_the_tree_unfolds_by_keyboard(page: Page, live: Live) -> None:
    live.post("/v1/completions", {"prompt": "one two", "max_tokens": 1})
    open_inspector(page, live.url)
    edge = "document.querySelector('.edge')"
    page.run(f"{edge}.focus()")
    page.press("Enter")
    assert page.run(f"{edge}.getAttribute('aria-expanded')") == "true"


def test_pausing_stops_the_asking(page: Page, live: Live) -> None:
    open_inspector(page, live.url)
    page.click("#pause")
    page.wait("document.getElementById('pause').textContent === 'Go on'")
    page.run("new Promise((done) => setTimeout(done, 300))")  # what was asked comes back
    before = len(page.requested)
    page.run("new Promise((done) => setTimeout(done, 1500))")
    assert len(page.requested) == before
    page.click("#pause")
    page.run("new Promise((done) => setTimeout(done, 1500))")
    assert len(page.requested) > before


def test_a_stranger_is_told_why_nothing_is_shown(page: Page, live: Live) -> None:
    url = f"http://models.test:{urlsplit(live.url).port}"
    page.go(f"{url}/#inspector")
    page.wait("!document.getElementById('inspector-problem').hidden")
    assert "--api-key" in page.text("#inspector-problem")
    assert "Enter an API key" in page.text("#inspector-problem")
    assert page.run("document.getElementById('inspector-body').hidden")
    page.problems.clear()  # the browser notes each 403 itself


def test_a_phone_shows_the_inspector_without_sideways_scrolling(page: Page, live: Live) -> None:
    live.post("/v1/completions", {"prompt": "no_place_to_break " * 20, "max_tokens": 1})
    page.size(*PHONE, is_phone=True)
    open_inspector(page, live.url)
    view = "document.getElementById('inspector')"
    assert page.run("document.documentElement.scrollWidth") == PHONE[0]
    assert page.run(f"{view}.scrollWidth <= {view}.clientWidth")


@pytest.fixture(scope="module")
def real(start_server: Callable[..., Live], default_model_path: Path) -> Iterator[Live]:
    """A server over the default model."""
    with InferenceEngine.from_pretrained(
        default_model_path,
        device="cpu",
        progress=False,
        max_batch_size=4,
        max_seq_len=2048,
        kv_mode="paged",
    ) as engine:
        yield start_server(engine)


@pytest.mark.model
def test_a_real_answer_streams_stops_and_is_inspected(page: Page, real: Live) -> None:
    page.go(real.url)
    page.wait("document.getElementById('model').textContent === 'astrai'")
    page.run("document.getElementById('prompt').focus()")
    page.type("Tell me a long story about a lighthouse keeper.")
    page.press("Enter")
    page.wait("document.querySelector('.assistant .markdown')?.innerText.length > 20", 120)
    page.run("location.hash = '#inspector'")
    page.wait(READY)
    page.wait("document.getElementById('requests').innerText.includes('decode')", 60)
    assert "Tell me a long story" in page.text("#tree")
    assert "1 ref" in page.text("#tree")
    page.wait("document.querySelector('.bars.decode').getAttribute('d').length > 0")
    page.wait(
        "[...document.querySelectorAll('.plot .now')].every((e) => e.textContent !== '\\u2013')"
    )
    page.run("location.hash = '#chat'")
    page.press("Escape")
    page.wait("document.getElementById('stop').hidden")
    assert "stopped" in page.text(".assistant .numbers")
    page.run("location.hash = '#inspector'")
    page.wait("document.getElementById('requests').innerText.includes('No open requests')", 60)
    assert real.wait_idle()["finished"]["cancelled"] == 1
    page.wait("document.getElementById('tree').innerText.includes('0 ref')")
