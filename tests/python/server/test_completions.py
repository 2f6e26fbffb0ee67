"""/v1/completions: prompts of every kind, ids in and out, models without a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FakeEngine
from live_server import Live

PATH = "/v1/completions"


def ask(live: Live, **body: Any) -> dict[str, Any]:
    response = live.post(PATH, {"max_tokens": 3, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize(
    "prompt, n_choices",
    [("Hi", 1), (["Hi", "Ho"], 2), ([72, 105], 1), ([[72, 105], [72, 111], [72]], 3)],
)
def test_a_choice_for_each_prompt_and_n(live: Live, prompt: Any, n_choices: int) -> None:
    answer = ask(live, prompt=prompt, n=2)
    assert [c["index"] for c in answer["choices"]] == list(range(2 * n_choices))
    requests = live.engine.client.requests  # type: ignore[union-attr]
    assert answer["usage"]["completion_tokens"] == 3 * 2 * n_choices
    assert answer["usage"]["prompt_tokens"] == sum(len(r.prompt_ids) for r in requests) / 2


def test_markers_in_a_raw_prompt_are_tokens_unless_asked_otherwise(live: Live) -> None:
    with_marker = ask(live, prompt="<|im_end|>", return_token_ids=True)
    assert with_marker["choices"][0]["prompt_token_ids"] == [258]
    as_text = ask(live, prompt="<|im_end|>", parse_special=False, return_token_ids=True)
    assert len(as_text["choices"][0]["prompt_token_ids"]) == len("<|im_end|>")


def test_echo_puts_the_prompt_before_the_text(live: Live) -> None:
    assert ask(live, prompt="Hi ", echo=True)["choices"][0]["text"] == "Hi Onc"
    both = ask(live, prompt=["A", "B"], echo=True, n=2)["choices"]
    assert [choice["text"] for choice in both] == ["AOnc", "AOnc", "BOnc", "BOnc"]


def test_legacy_logprobs_are_parallel_lists(live: Live) -> None:
    logprobs = ask(live, prompt="Hi", logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["O", "n", "c"] and logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"] == [-0.25] * 3
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2, 2]


@pytest.mark.parametrize(
    "bad, param",
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 6}, "prompt"),
    ],
)
def test_refusals_are_400_and_name_the_field(live: Live, bad: dict[str, Any], param: str) -> None:
    response = live.post(PATH, {"prompt": "Hi", "max_tokens": 2, **bad})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_one_bad_prompt_of_several_submits_none(live: Live) -> None:
    response = live.post(PATH, {"prompt": [[72], [300]], "max_tokens": 2})
    assert response.status_code == 400
    assert not live.engine.client.requests  # type: ignore[union-attr]


def test_a_model_without_tokenizer_serves_token_ids_only(
    start_server: Callable[..., Live],
) -> None:
    live = start_server(FakeEngine(has_tokenizer=False))
    text_routes: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]}),
        (PATH, {"prompt": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [1]}),
        (PATH, {"prompt": [1], "stop": "x"}),
    ]
    for path, body in text_routes:
        response = live.post(path, body)
        assert response.status_code == 400 and "tokenizer" in response.json()["detail"], path
    answer = ask(live, prompt=[1, 2], return_token_ids=True, ignore_eos=True)["choices"][0]
    assert answer["text"] == "" and len(answer["token_ids"]) == 3
    raw = live.stream(PATH, {"prompt": [1], "max_tokens": 3, "return_token_ids": True})
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert ids == answer["token_ids"]


def test_a_model_without_template_refuses_chats(start_server: Callable[..., Live]) -> None:
    live = start_server(FakeEngine(has_template=False))
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert "chat template" in live.post("/v1/chat/completions", body).json()["detail"]
    assert ask(live, prompt="Hi")["choices"][0]["text"] == "Onc"
