"""The chat at / in a real browser over the fake engine: what a person does and sees."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from browser import PHONE, Page
from fake_engine import FakeEngine
from live_server import Live

ANSWER = "document.querySelector('.assistant:last-child .markdown')"
IS_DONE = "document.getElementById('stop').hidden && !!document.querySelector('.assistant')"
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n\n"
    "[click](javascript:document.title='owned') ![pixel](https://evil.example/p.png)\n\n"
    "```html\n</code></pre><iframe src=//evil.example></iframe>\n```\n\n"
    "<svg/onload=alert(1)> `<b>` **<i>bold</i>** [good](https://good.example/a?b=<c>)"
)


def open_chat(page: Page, url: str) -> None:
    page.go(url)
    page.wait("document.getElementById('model').textContent === 'astrai'")


def send(page: Page, text: str) -> None:
    page.run("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter")


def ask(page: Page, text: str) -> str:
    """Send and wait for the whole answer."""
    send(page, text)
    page.wait(IS_DONE)
    return page.text(".assistant:last-child .markdown")


def test_an_answer_is_seen_while_it_comes_and_counted_when_it_is_there(
    page: Page, live: Live
) -> None:
    live.script.text = "Once there was a fox. "
    live.script.ends_after = 44
    live.script.n_cached = 70
    live.script.permits = threading.Semaphore(10)
    open_chat(page, live.url)
    send(page, "Hello")
    page.wait(f"{ANSWER}?.innerText.startsWith('Once there')")
    assert page.run("document.querySelector('.assistant').getAttribute('aria-busy')") == "true"
    assert page.run("document.getElementById('send').hidden")
    page.run("new Promise((done) => setTimeout(done, 100))")  # a stretch with a speed
    live.script.permits.release(100)
    page.wait(IS_DONE)
    assert page.text(".assistant .markdown").rstrip() == ("Once there was a fox. " * 2).rstrip()
    numbers = page.text(".assistant .numbers")
    assert "45 output" in numbers and "prompt (70 cached)" in numbers
    assert "tokens/s" in numbers and "first token" in numbers
    assert page.text(".user .body") == "Hello"
    assert page.text("#status") == "The answer is complete."


@pytest.mark.parametrize("by", ["button", "Escape"])
def test_stop_cancels_the_generation_and_keeps_what_was_said(
    page: Page, live: Live, by: str
) -> None:
    live.script.delay_s = 0.01
    open_chat(page, live.url)
    send(page, "Go on for ever")
    page.wait(f"{ANSWER}?.innerText.length > 3")
    if by == "button":
        page.click("#stop")
    else:
        page.press("Escape")
    page.wait(IS_DONE)
    live.wait_idle()
    assert live.engine is not None and live.engine.client.n_cancelled == 1
    said = page.text(".assistant .markdown")
    assert live.script.text.startswith(said.strip()) and len(said) > 3
    assert "stopped" in page.text(".assistant .numbers")
    assert "output" in page.text(".assistant .numbers")


def test_what_the_model_writes_stays_text(page: Page, live: Live) -> None:
    live.script.text = HOSTILE
    live.script.ends_after = len(HOSTILE.encode())
    open_chat(page, live.url)
    shown = ask(page, "<script>document.title='owned'</script>")
    assert page.run("document.title") == "AstrAI"
    inside = "document.getElementById('messages').querySelectorAll"
    assert page.run(f"{inside}('img, script, iframe, b, i, svg[onload]').length") == 0
    assert page.run(f"[...{inside}('a')].map((a) => a.href)") == [
        "https://evil.example/p.png",  # an image is a link: nothing is fetched before a click
        "https://good.example/a?b=%3Cc%3E",
    ]
    assert "<img src=x" in shown and "javascript:document" in shown and "</iframe>" in shown
    assert page.text(".user .body") == "<script>document.title='owned'</script>"
    hosts = {urlsplit(address).netloc for address in page.requested}
    assert hosts == {urlsplit(live.url).netloc}


def test_markdown_is_shown_as_what_it_means(page: Page, live: Live) -> None:
    live.script.text = (
        "# Title\n\nSome **bold** and *slanted* `code_here` 2 * 3 * 4 snake_case_name.\n\n"
        "1. one\n2. two\n   - inner\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```python\ndef f(x):\n    return x  # <b>\n```\nAfter."
    )
    live.script.ends_after = len(live.script.text)
    open_chat(page, live.url)
    ask(page, "Show me")
    found = page.run(
        f"""(() => {{
          const all = (s) => [...{ANSWER}.querySelectorAll(s)].map((e) => e.textContent);
          return {{bold: all('strong'), slanted: all('em'), code: all('p code'), title: all('h3'),
            items: all('ol > li').length, inner: all('ol ul li'), quote: all('blockquote'),
            cells: all('td'), block: all('pre code'), language: all('figcaption span')}};
        }})()"""
    )
    assert found == {
        "bold": ["bold"],
        "slanted": ["slanted"],
        "code": ["code_here"],
        "title": ["Title"],
        "items": 2,
        "inner": ["inner"],
        "quote": ["quoted"],
        "cells": ["1", "2"],
        "block": ["def f(x):\n    return x  # <b>"],
        "language": ["python"],
    }
    assert "2 * 3 * 4 snake_case_name" in page.text(".assistant .markdown")


def test_settings_reach_the_request(page: Page, live: Live) -> None:
    open_chat(page, live.url)
    values = {
        "system": "Be brief.",
        "temperature": "0.25",
        "top_p": "0.5",
        "top_k": "7",
        "max_tokens": "5",
        "seed": "42",
        "stop": "END\\nHERE\n###",
    }
    page.run(
        f"for (const [name, value] of Object.entries({json.dumps(values)})) {{"
        "const field = document.getElementById('settings-form').elements[name];"
        "field.value = value; field.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    ask(page, "Hi")
    assert live.engine is not None
    request = live.engine.client.requests[-1]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k) == (0.25, 0.5, 7)
    assert (params.max_tokens, params.seed) == (5, 42)
    assert params.stop == ("END\nHERE", "###")
    assert live.engine.tokenizer is not None
    assert "system\nBe brief." in live.engine.tokenizer.decode(request.prompt_ids)
    assert "cut off at the token limit" in page.text(".assistant .numbers")


def test_the_conversation_goes_on_and_survives_a_reload(page: Page, live: Live) -> None:
    live.script.ends_after = 9
    open_chat(page, live.url)
    ask(page, "First")
    ask(page, "Second")
    assert live.engine is not None and live.engine.tokenizer is not None
    prompt = live.engine.tokenizer.decode(live.engine.client.requests[-1].prompt_ids)
    assert "First" in prompt and "Once ther" in prompt and "Second" in prompt
    before = page.text("#messages")
    page.go(live.url)
    page.wait("document.querySelectorAll('.message').length === 4")
    assert page.text("#messages") == before
    assert page.run("getComputedStyle(document.querySelector('.redo')).display") == "none"


def test_regenerate_asks_again_with_the_same_conversation(page: Page, live: Live) -> None:
    live.script.ends_after = 4
    open_chat(page, live.url)
    ask(page, "Hello")
    live.script.text = "Another answer"
    page.click(".assistant .redo")
    page.wait(f"{IS_DONE} && {ANSWER}.innerText.startsWith('Anot')")
    assert page.run("document.querySelectorAll('.message').length") == 2
    assert live.engine is not None
    first, second = live.engine.client.requests
    assert first.prompt_ids == second.prompt_ids


def test_edit_and_clear_take_messages_back(page: Page, live: Live) -> None:
    live.script.ends_after = 4
    open_chat(page, live.url)
    ask(page, "A question")
    page.run("document.querySelector('.user .edit').click()")
    assert page.run("document.getElementById('prompt').value") == "A question"
    assert page.run("document.querySelectorAll('.message').length") == 0
    page.press("Enter")
    page.wait(IS_DONE)
    page.click("#clear")
    assert page.run("document.querySelectorAll('.message').length") == 0
    assert not page.run("document.getElementById('welcome').hidden")


def test_clearing_in_mid_answer_cancels_it_and_a_new_one_may_begin(page: Page, live: Live) -> None:
    live.script.delay_s = 0.02
    open_chat(page, live.url)
    send(page, "First")
    page.wait(f"{ANSWER}?.innerText.length > 3")
    page.click("#clear")
    live.script.delay_s, live.script.ends_after = 0.0, 4
    assert ask(page, "Second") == "Once"
    live.wait_idle()
    assert live.engine is not None and live.engine.client.n_cancelled == 1
    assert page.run("document.querySelectorAll('.message').length") == 2


def test_shift_enter_starts_a_line_and_enter_sends(page: Page, live: Live) -> None:
    live.script.ends_after = 4
    open_chat(page, live.url)
    page.run("document.getElementById('prompt').focus()")
    page.type("one")
    page.press("Enter", shift=True)
    page.type("two")
    assert page.run("document.querySelectorAll('.message').length") == 0
    page.press("Enter")
    page.wait(IS_DONE)
    assert page.text(".user .body") == "one\ntwo"


def test_the_keyboard_reaches_everything_in_order(page: Page, live: Live) -> None:
    open_chat(page, live.url)
    page.run("document.querySelector('.skip').focus()")
    reached = []
    for _ in range(24):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id"))
    wanted = ["chat-tab", "inspector-tab", "theme", "settings-toggle", "scroll", "prompt", "send"]
    wanted += ["reset", "system", "temperature", "top_p", "top_k", "max_tokens", "seed"]
    assert [name for name in reached if name in wanted][: len(wanted)] == wanted


@pytest.mark.parametrize("_shared", [False], indirect=True)  # faults of this process
@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"fail_at": 6, "delay_s": 0.02}, "A fault on demand."),
        ({"queue_full": True}, "The server is busy; try again in 3 s."),
    ],
)
def test_errors_are_told_in_words(
    page: Page, live: Live, setup: dict[str, object], words: str
) -> None:
    for name, value in setup.items():
        setattr(live.script, name, value)
    open_chat(page, live.url)
    ask(page, "Hello")
    assert page.text(".assistant .error") == words
    if "fail_at" in setup:
        assert page.text(".assistant .markdown").startswith("Once")  # what came before stays
    live.script.fail_at, live.script.queue_full, live.script.ends_after = None, False, 4
    page.click(".assistant .redo")
    page.wait(f"{IS_DONE} && document.querySelector('.assistant .error').hidden")
    page.problems.clear()  # the browser notes the 429 itself


def test_a_server_that_is_gone_is_told_in_words(page: Page, live: Live) -> None:
    open_chat(page, live.url)
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", **offline)
    ask(page, "Hello")
    assert "cannot be reached" in page.text(".assistant .error")
    page.problems.clear()  # the browser notes the failed request itself


def test_a_prompt_that_does_not_fit_is_told_in_words(page: Page, live: Live) -> None:
    open_chat(page, live.url)
    ask(page, "x" * 700)
    assert "tokens" in page.text(".assistant .error")
    assert "at most" in page.text(".assistant .error")
    page.problems.clear()  # the browser notes the 400 itself


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(
    page: Page, start_server: Callable[..., Live]
) -> None:
    live = start_server(FakeEngine(), api_keys=("open sesame",))
    page.go(live.url)
    page.wait("document.getElementById('key-dialog').open")
    assert page.text("#banner") == "This server needs an API key."
    page.type("wrong")
    page.press("Enter")
    page.wait("document.getElementById('banner').textContent.includes('not accept')")
    page.run("document.getElementById('key').value = ''")
    page.run("document.getElementById('key').focus()")
    page.type("open sesame")
    page.press("Enter")
    page.wait("document.getElementById('model').textContent === 'astrai'")
    assert page.run("document.getElementById('banner').hidden")
    assert ask(page, "Hello").startswith("Once")
    page.run("location.hash = '#inspector'")
    page.wait("document.getElementById('tiles').innerText.includes('Running')")
    stored = page.run("[JSON.stringify(localStorage), document.cookie]")
    assert "sesame" not in str(stored)
    assert "open sesame" in page.run("JSON.stringify(sessionStorage)")
    page.problems.clear()  # the browser notes each 401 itself


def test_thoughts_are_folded_away(page: Page, live: Live) -> None:
    chunks = [
        {"reasoning_content": "First I "},
        {"reasoning_content": "think."},
        {"content": "Yes."},
    ]
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in chunks]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    open_chat(page, live.url)
    page.run(f"window.fetch = async () => new Response({json.dumps(stream)})")
    assert ask(page, "Hello") == "Yes."
    assert page.run("document.querySelector('.reasoning').open") is False
    assert page.run("document.querySelector('.thoughts').textContent") == "First I think."


def test_a_phone_shows_everything_without_sideways_scrolling(page: Page, live: Live) -> None:
    live.script.text = (
        "A_very_long_word_without_any_place_to_break_it_" * 4
        + "\n\n```\n"
        + "code that is much longer than a phone is wide " * 3
        + "\n```\n\n| a | b | c | d | e | f |\n|-|-|-|-|-|-|\n| "
        + " | ".join(["wide cells"] * 6)
        + " |\n"
    )
    live.script.ends_after = len(live.script.text)
    page.size(*PHONE, is_phone=True)
    open_chat(page, live.url)
    width = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    assert page.run(width) == PHONE[0]
    assert page.run("document.getElementById('settings').hidden")
    ask(page, "Hello" * 30)
    assert page.run(width) == PHONE[0]
    scroll = "document.getElementById('scroll')"
    assert page.run(f"{scroll}.scrollWidth <= {scroll}.clientWidth")
    page.click("#settings-toggle")
    page.wait("!document.getElementById('settings').hidden")
    assert page.run(width) == PHONE[0]
    page.press("Escape")
    assert page.run("document.getElementById('settings').hidden")


@pytest.mark.parametrize("proxy", [{"proxy_path": "/ai"}, {"root_path": "/ai"}])
def test_the_page_works_behind_a_proxy_s_path(
    page: Page, start_server: Callable[..., Live], proxy: dict[str, str]
) -> None:
    """The first proxy takes the path off, the second leaves it in and the server knows it."""
    live = start_server(FakeEngine(), **proxy)
    open_chat(page, f"{live.url}/ai/")
    assert ask(page, "Hello").startswith("Once")
    assert {urlsplit(address).path.split("/")[1] for address in page.requested} == {"ai"}


def test_motion_is_reduced_where_asked(page: Page, live: Live) -> None:
    live.script.delay_s = 0.01
    open_chat(page, live.url)
    send(page, "Hello")
    cursor = f"getComputedStyle({ANSWER}.lastElementChild, '::after').animationName"
    page.wait(f"{ANSWER}?.innerText.length > 1 && {cursor} === 'blink'")
    reduce = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.send("Emulation.setEmulatedMedia", features=[reduce])
    page.wait(f"{cursor} === 'none'")
    page.press("Escape")
    page.wait(IS_DONE)


def test_the_colour_scheme_follows_the_system_until_one_is_chosen(page: Page, live: Live) -> None:
    open_chat(page, live.url)
    paper = "getComputedStyle(document.body).backgroundColor"
    page.scheme("dark")
    dark = page.run(paper)
    page.scheme("light")
    light = page.run(paper)
    assert dark != light
    page.scheme("dark")
    page.click("#theme")
    assert page.run(paper) == light
    page.go(live.url)
    assert page.run(paper) == light
