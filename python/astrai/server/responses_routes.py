"""Routes of the Responses protocol: create, and what can be asked of stored ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from astrai.server.body import read_model
from astrai.server.errors import bad_request
from astrai.server.protocol import require_engine, serve_protocol
from astrai.server.response_store import ResponseStore
from astrai.server.responses import ResponsesBuilder, conversation, prepare_chat
from astrai.server.responses_input import check_supported
from astrai.server.responses_models import InputFields, ResponsesRequest
from astrai.server.sse import encode_json

router = APIRouter()


def _store(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.response_store
    return store


def _json(payload: Any) -> Response:
    return Response(encode_json(payload), media_type="application/json")


@router.post("/v1/responses")
async def create_response(request: Request) -> Response:
    """A response in OpenAI's newer protocol, streamed or not."""
    return await serve_protocol(request, ResponsesRequest, ResponsesBuilder(_store(request)))


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a response has."""
    body = await read_model(request, InputFields)
    link = require_engine(request)
    store = _store(request)

    def count() -> int:
        check_supported(body)
        prompts, _, _ = prepare_chat(body, link, conversation(body, store))
        return len(prompts[0])

    return _json({"object": "response.input_tokens", "input_tokens": await link.run(count)})


@router.get("/v1/responses/{response_id}")
async def retrieve_response(request: Request, response_id: str) -> Response:
    """A stored response."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
        raise bad_request(
            "a stored response is not streamed again by this server; leave stream out",
            param="stream",
            code="unsupported_value",
        )
    return _json(_store(request).get(response_id).response)


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response."""
    _store(request).delete(response_id)
    return _json({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Always refused: there are no background responses."""
    _store(request).get(response_id)
    raise bad_request(
        "only background responses can be cancelled, and this server makes none; "
        "close the connection to end a response that is being made",
        code="unsupported_value",
    )


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=128)] = None,
) -> Response:
    """What the model was given, a page of it."""
    items = _store(request).get(response_id).input_items
    if order == "desc":
        items = items[::-1]
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise bad_request("after names no input item of this response", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return _json(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else "",
            "last_id": page[-1]["id"] if page else "",
            "has_more": len(items) > limit,
        }
    )
