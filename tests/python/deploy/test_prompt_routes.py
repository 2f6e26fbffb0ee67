"""The route of a request, and responses that are found again where they are stored."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from forwarded_front import Front, text_link

from astrai.deploy.forwarded import Route
from astrai.deploy.prefix_affinity import page_keys
from astrai.deploy.prompt_routes import PromptRoutes
from astrai.server import ServerSettings

LONG = "Answer like a fox who lives near a river and likes the cold morning air. " * 2
MESSAGES = [{"role": "user", "content": LONG}]
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/responses": {"input": LONG},
}


def route(path: str, body: Any, **settings: Any) -> Route:
    return PromptRoutes(text_link(ServerSettings(**settings))).of(path, orjson.dumps(body))


def test_every_chat_protocol_has_the_keys_of_the_prompt_that_the_engine_computes(
    front: Front,
) -> None:
    ids = front.post("/tokenize", {"messages": MESSAGES}).json()["tokens"]
    expected = page_keys(ids, 16)

    assert len(expected) > 8
    for path, body in PROMPTS.items():
        assert front.post(path, {"model": "m", **body}).status_code == 200
        assert front.requests[-1].route == Route(expected)


def test_a_prompt_of_token_ids_has_their_keys() -> None:
    ids = list(range(40))

    assert route("/v1/completions", {"prompt": ids}) == Route(page_keys(ids, 16))
    assert route("/v1/completions", {"prompt": ids}, page_size=4) == Route(page_keys(ids, 4))


@pytest.mark.parametrize("settings", [{"kv_mode": "contiguous"}, {"page_size": 1}])
def test_an_engine_without_prefix_reuse_has_no_affinity(settings: dict[str, Any]) -> None:
    assert route("/v1/completions", {"prompt": list(range(40))}, **settings) == Route()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": "no list"}),
        ("/v1/completions", {"prompt": [-5] * 40}),
        ("/v1/responses", [1]),
        ("/v1/messages/count_tokens", {"messages": MESSAGES}),
        ("/v1/responses/resp_forged", {}),
    ],
)
def test_a_request_without_a_prompt_to_compute_goes_anywhere(path: str, body: Any) -> None:
    assert route(path, body) == Route()


def test_a_stored_response_is_continued_shown_and_deleted_where_it_is(front: Front) -> None:
    ids = {}
    for name in ("one", "two"):
        asked = {"model": "m", "input": f"I am with {name}.", "max_output_tokens": 9}
        stored = front.post("/v1/responses", asked, **{"x-astrai-replica": name})
        ids[name] = stored.json()["id"]
        assert ids[name].startswith(f"resp_{name}_")

    for name, response_id in ids.items():
        more = {"model": "m", "input": "Who?", "max_output_tokens": 9}
        more |= {"previous_response_id": response_id}
        answer = front.post("/v1/responses", more)
        assert answer.status_code == 200 and answer.json()["id"].startswith(f"resp_{name}_")
        items = front.http.get(f"/v1/responses/{answer.json()['id']}/input_items").json()["data"]
        assert f"I am with {name}." in str(items)
        counted = front.post("/v1/responses/input_tokens", more)
        assert counted.status_code == 200

    assert front.http.delete(f"/v1/responses/{ids['two']}").json()["deleted"]
    assert front.http.get(f"/v1/responses/{ids['two']}").status_code == 404
    assert front.http.get(f"/v1/responses/{ids['one']}").status_code == 200
